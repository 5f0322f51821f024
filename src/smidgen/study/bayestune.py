"""BayesTune from end to end: the few weights worth tuning, a delta, and a posterior.

A chain over the pretrained weights scales the prior of each; those of the largest scales
are tuned together with a new head; the tuned model, what changed in it, and a posterior
over the tuned weights go to one folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from smidgen import fit, select
from smidgen.affine import coverage
from smidgen.errors import ArgumentError
from smidgen.fit import Agreement, Scales, SparselyFinetuned
from smidgen.fit.langevin import NOISE_DISCOUNT, TEMPERATURE, Update, chain_course
from smidgen.fit.stopping import Criterion
from smidgen.fit.swag import SwagOptions
from smidgen.heads import Head, head_of
from smidgen.integrations import huggingface
from smidgen.integrations.text import TextTable
from smidgen.likelihood import Categorical
from smidgen.memory import readable
from smidgen.posterior import Posterior
from smidgen.record import Record
from smidgen.select.bayestune import DEFAULT_FRACTION, refuse_several_rules
from smidgen.select.top import fraction_share
from smidgen.study.comparison import posterior_summary, precision_curve
from smidgen.study.resumed_swag import collect, keep
from smidgen.study.text_task import Loader, Say
from smidgen.study.tuned_folder import TunedFolder
from smidgen.subset import Subset
from smidgen.swag import SwagPosterior

Kind = Literal["laplace", "swag", "none"]


@dataclass(frozen=True)
class BayesTuneSettings:
    """Every choice that shapes a run.

    `fraction`, `threshold` and `elbow` are rules of `select.bayestune`, of which one may
    be given; `posterior` is what is fitted over the tuned weights. `agreement` compares
    chains on two halves of the data, `half` keeps the differences in fp16.

    Raises:
        ArgumentError: If the rule is not one.
    """

    fraction: float | None = None
    threshold: float | None = None
    elbow: bool = False
    posterior: Kind = "laplace"
    chain_epochs: int = 2
    temperature: float | None = None
    noise_discount: float | None = None
    update: Update = "langevin"
    agreement: bool = False
    epochs: int = 5
    learning_rate: float = 1e-3
    patience: int = 2
    stop_on: Criterion | None = None
    half: bool = False
    batch_size: int = 16
    max_length: int = 128
    seed: int = 0
    device: str | None = None

    def __post_init__(self) -> None:
        refuse_several_rules(self.fraction, self.threshold, self.elbow)
        if self.fraction is not None:
            fraction_share(self.fraction)

    @property
    def rule(self) -> dict[str, Any]:
        """How many weights are chosen, as `select.bayestune` takes it."""
        if self.threshold is not None or self.elbow:
            return {"threshold": self.threshold, "elbow": self.elbow}
        return {"fraction": DEFAULT_FRACTION if self.fraction is None else self.fraction}

    @property
    def chain(self) -> dict[str, Any]:
        """How the chain moves, as `fit.langevin` takes it."""
        names = ("temperature", "noise_discount", "update", "seed")
        return {name: getattr(self, name) for name in names}

    @property
    def tuning(self) -> dict[str, Any]:
        """How the weights are tuned, as `fit.sparse_finetune` takes it."""
        names = ("epochs", "learning_rate", "patience", "stop_on", "seed")
        return {name: getattr(self, name) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """As a record holds it, the chain's defaults filled in."""
        chain = self.chain
        if self.update == "langevin":
            defaults = {"temperature": TEMPERATURE, "noise_discount": NOISE_DISCOUNT}
            chain |= {n: d for n, d in defaults.items() if chain[n] is None}
        return {
            "rule": self.rule,
            "chain": {"epochs": self.chain_epochs, **chain},
            "tuning": self.tuning,
            "posterior": self.posterior,
            "half": self.half,
        }


@dataclass(frozen=True, eq=False)
class Choice:
    """The weights to be tuned, and the chain that chose them.

    Args:
        subset: The chosen weights, the head among them.
        scales: What the chain found.
        fraction: The share of the ranked weights that was chosen.
        head_size: How many weights are of the head.
        head_modules: The modules of the head, in the model's order.
    """

    subset: Subset
    scales: Scales
    fraction: float
    head_size: int
    head_modules: tuple[str, ...]


Finding = Choice | Agreement | SparselyFinetuned | Posterior | SwagPosterior
"""What is shown as soon as it is there."""


def bayestune(
    base: str | Path,
    train: TextTable,
    validation: TextTable,
    place: TunedFolder,
    settings: BayesTuneSettings | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    say: Say = print,
    show: Callable[[Finding], None] = lambda _: None,
    progress: bool = True,
) -> Record:
    """Sample the scales, choose, tune, save, and fit a posterior over what was tuned.

    Args:
        base: Folder or hub id of the pretrained model; it gets a new head.
        train: Labelled texts, of classes or with numbers.
        validation: Others, which decide when to stop and choose the posterior's scale.
        place: Where all goes, from `open_folder`; an interrupted run goes on from there.
        settings: What to do.
        config: What else to note in the record.
        say: Told each step in a few words.
        show: Told each finding as it comes.
        progress: Draw progress bars on a terminal.

    Returns:
        The record, which is saved too.

    Raises:
        ArgumentError: If there is one class only, or the model cannot be loaded.
    """
    settings = settings or BayesTuneSettings()
    work = _started(base, train, validation, settings, progress)
    say("Sampling the scales")
    choice = _chosen(work, place)
    show(choice)
    results: dict[str, Any] = {"chain": choice.scales.to_dict(choice.fraction)}
    if settings.agreement:
        say("Sampling on two halves of the data")
        agreed = _agreement(work, train, choice.fraction)
        show(agreed)
        results["agreement"] = agreed.to_dict()
    say(f"Tuning {choice.subset.size:,} weights")
    found = fit.sparse_finetune(
        work.network,
        work.train,
        choice.subset,
        work.validation,
        **settings.tuning,
        head=work.head,
        checkpoint=place.tuning_state,
        progress=progress,
    )
    show(found)
    tuned, size = _saved(found, work, place)
    say(f"Saved {place.delta}, {readable(size)}, and the model beside it")
    results = {**_summary(found, place, size, choice.head_size), **results}
    if settings.posterior != "none":
        say("Fitting a posterior over the tuned weights")
        posterior = _fitted(tuned, work, choice.subset, place, say)
        keep(posterior, place.posterior, say, overwrite=place.overwrite)
        show(posterior)
        results |= _posterior_results(posterior)
    sizes = {"batch_size": settings.batch_size, "max_length": settings.max_length}
    noted = {**(config or {}), **sizes, "head": choice.head_modules, **settings.to_dict()}
    record = Record("tune", noted, results, settings.seed)
    record.save(place.record)
    place.forget()
    return record


@dataclass(frozen=True, eq=False)
class _Work:
    """A pretrained model with a new head, and its batches."""

    network: PreTrainedModel
    head: Head
    tokenizer: PreTrainedTokenizerBase
    train: Loader
    validation: Loader
    settings: BayesTuneSettings
    progress: bool

    def chain(self, loader: Loader) -> dict[str, Any]:
        """The arguments of a chain over some batches."""
        course = asdict(chain_course(self.settings.chain_epochs * len(loader)))
        own = {"head": self.head, "progress": self.progress}
        return {**course, **self.settings.chain, **own}


def _started(
    base: str | Path,
    train: TextTable,
    validation: TextTable,
    settings: BayesTuneSettings,
    progress: bool,
) -> _Work:
    labels = 1 if train.numbers else train.classes("labels of train")
    if labels < 2 and not train.numbers:
        raise ArgumentError("train must hold 2 classes or more, got 1. Add the other.")
    loaded = huggingface.load_with_head(
        base, labels=labels, seed=settings.seed, device=settings.device
    )
    huggingface.name_classes(loaded.model, train.label_names)
    return _Work(
        loaded.model,
        loaded.head,
        loaded.tokenizer,
        _batches(train, loaded.tokenizer, settings, shuffle=True),
        _batches(validation, loaded.tokenizer, settings),
        settings,
        progress,
    )


def _batches(
    table: TextTable,
    tokenizer: PreTrainedTokenizerBase,
    settings: BayesTuneSettings,
    *,
    shuffle: bool = False,
) -> Loader:
    return huggingface.text_loader(
        table,
        tokenizer,
        batch_size=settings.batch_size,
        max_length=min(settings.max_length, tokenizer.model_max_length),
        shuffle=shuffle,
        seed=settings.seed,
    )


def _chosen(work: _Work, place: TunedFolder) -> Choice:
    """Run the chain, and choose by its scales."""
    how = {**work.chain(work.train), "checkpoint": place.chain_state}
    scales = fit.langevin(work.network, work.train, **how)
    rule = work.settings.rule
    subset = select.bayestune(work.network, scales.means, **rule, head=work.head)
    names = head_of(work.network, work.head)
    size = sum(work.network.get_parameter(name).numel() for name in names)
    modules = tuple(dict.fromkeys(name.rpartition(".")[0] for name in names))
    fraction = rule.get("fraction", (subset.size - size) / scales.size)
    return Choice(subset, scales, fraction, size, modules)


def _agreement(work: _Work, table: TextTable, fraction: float) -> Agreement:
    """Run a chain on each half of the data."""
    first, second = (
        _batches(
            table.take(range(start, len(table), 2)),
            work.tokenizer,
            work.settings,
            shuffle=True,
        )
        for start in (0, 1)
    )
    how = work.chain(first)
    return fit.agreement(work.network, first, second, fraction=fraction, **how)


def _saved(
    found: SparselyFinetuned, work: _Work, place: TunedFolder
) -> tuple[PreTrainedModel, int]:
    """Write the delta and the model it makes; return that and the delta's bytes."""
    delta = found.delta.half() if work.settings.half else found.delta
    tuned = deepcopy(work.network)
    delta.apply(tuned)
    size = delta.save(place.delta).stat().st_size
    huggingface.save_model(tuned, work.tokenizer, place.model, overwrite=place.overwrite)
    return tuned, size


def _summary(
    found: SparselyFinetuned, place: TunedFolder, size: int, head: int
) -> dict[str, Any]:
    """What tuning came to, as a record holds it."""
    whole = sum(each.numel() for each in found.delta.replaced.values())
    return {
        "delta": str(place.delta),
        "bytes": size,
        "weights": found.delta.subset.size + whole,
        "head": head,
        "best": asdict(found.best),
        "history": [asdict(each) for each in found.history],
    }


def _fitted(
    tuned: PreTrainedModel, work: _Work, subset: Subset, place: TunedFolder, say: Say
) -> Posterior | SwagPosterior:
    """Fit a posterior over the tuned weights and tune it on the held-out texts."""
    progress = work.progress
    if work.settings.posterior == "swag":
        steps = max(100, 2 * len(work.train))
        return collect(
            tuned,
            work.train,
            work.validation,
            subset,
            options=SwagOptions(steps=steps, trial_steps=steps // 5),
            seed=work.settings.seed,
            folder=place.posterior,
            say=say,
            progress=progress,
        )
    # Single weights: no rows × columns to factor.
    kept = _affine(tuned, subset, say)
    found = fit.laplace(tuned, work.train, kept, structure="diag", progress=progress)
    return fit.tune_precision(found, tuned, work.validation, progress=progress)


def _affine(model: PreTrainedModel, subset: Subset, say: Say) -> Subset:
    """What a Laplace posterior can hold: a new head may have a norm between its maps."""
    universe = coverage(model).universe
    parts = {name: part for name, part in subset.parts.items() if name in universe}
    if len(parts) == len(subset.parts):
        return subset
    kept = Subset(universe, parts)
    say(f"Leaving {subset.size - kept.size:,} weights out that are of no affine map")
    return kept


def _posterior_results(posterior: Posterior | SwagPosterior) -> dict[str, Any]:
    """The posterior in numbers, and where a classifier has one the curve of its page."""
    found: dict[str, Any] = {"posterior": posterior_summary(posterior)}
    classes = isinstance(posterior.likelihood, Categorical)
    if classes and isinstance(posterior, Posterior):
        found["precision_curve"] = precision_curve(posterior)
    return found
