"""BayesTune from end to end: fine-tune the few weights worth it, then fit a posterior.

A chain over the pretrained weights finds how far each one wants to move. The weights with
the largest scales are fine-tuned together with a new head. One folder gets the fine-tuned
model, the small delta that makes it, and a posterior over the fine-tuned weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedModel, PreTrainedTokenizerBase

import smidgen.fit as fit
import smidgen.select as select
from smidgen.curvature.output_layers import first_batch, name_head
from smidgen.errors import ArgumentError
from smidgen.fit import (
    Agreement,
    FinetuneResult,
    FinetuneSettings,
    LangevinSettings,
    Scales,
)
from smidgen.fit.bayestune.langevin import (
    NOISE_DISCOUNT,
    TEMPERATURE,
    Update,
    schedule_chain,
)
from smidgen.fit.epochs import Criterion
from smidgen.fit.sgd import SwagSettings
from smidgen.integrations import huggingface
from smidgen.integrations.text import TextTable
from smidgen.integrations.text_length import TextLength
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Posterior
from smidgen.runtime.memory import count_bytes, format_bytes
from smidgen.runtime.record import Record
from smidgen.runtime.writing.writable import require_space
from smidgen.select.bayestune import DEFAULT_FRACTION, refuse_several_rules
from smidgen.select.ranking import check_fraction
from smidgen.weights.affine import coverage
from smidgen.weights.head import Head, find_head
from smidgen.weights.subset import Subset
from smidgen.workflows.fit_posterior import CHECKPOINT_EVERY, FitChoices, fit_posterior
from smidgen.workflows.text_task import TextLoader
from smidgen.workflows.tuned_folder import TunedFolder

PosteriorName = Literal["laplace", "swag", "none"]


@dataclass(frozen=True)
class BayesTuneSettings:
    """Everything that shapes a run.

    `fraction`, `threshold` and `elbow` are the rules of `select.bayestune`: set at most
    one. `posterior` is the kind to fit over the fine-tuned weights. `agreement` also
    compares chains on two halves of the data; `half` stores the delta in fp16.
    """

    fraction: float | None = None
    threshold: float | None = None
    elbow: bool = False
    posterior: PosteriorName = "laplace"
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
            check_fraction(self.fraction)

    @property
    def rule(self) -> dict[str, Any]:
        """How many weights to choose, as `select.bayestune` takes it."""
        if self.threshold is not None or self.elbow:
            return {"threshold": self.threshold, "elbow": self.elbow}
        return {"fraction": DEFAULT_FRACTION if self.fraction is None else self.fraction}

    @property
    def chain(self) -> dict[str, Any]:
        """How the chain moves, as `LangevinSettings` takes it."""
        names = ("temperature", "noise_discount", "update")
        return {name: getattr(self, name) for name in names}

    @property
    def tuning(self) -> dict[str, Any]:
        """How the weights are tuned, as `FinetuneSettings` takes it."""
        names = ("epochs", "learning_rate", "patience", "stop_on")
        return {name: getattr(self, name) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """List the settings for a record, with the chain's defaults filled in."""
        chain = self.chain
        if self.update == "langevin":
            defaults = {"temperature": TEMPERATURE, "noise_discount": NOISE_DISCOUNT}
            chain |= {n: d for n, d in defaults.items() if chain[n] is None}
        return {
            "rule": self.rule,
            "chain": {"epochs": self.chain_epochs, **chain, "seed": self.seed},
            "tuning": {**self.tuning, "seed": self.seed},
            "posterior": self.posterior,
            "half": self.half,
        }


@dataclass(frozen=True, eq=False)
class ChosenWeights:
    """The weights to fine-tune, and the chain that chose them."""

    subset: Subset  # the head among them
    scales: Scales
    fraction: float  # of the ranked weights, without the head
    head_size: int
    head_modules: tuple[str, ...]


Finding = ChosenWeights | Agreement | FinetuneResult | Posterior
"""A result that is shown as soon as it is known."""


def run_bayestune(
    base: str | Path,
    train: TextTable,
    validation: TextTable,
    folder: TunedFolder,
    settings: BayesTuneSettings | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    show: Callable[[str | Finding], None] = print,
    progress: bool = True,
) -> Record:
    """Choose the weights worth fine-tuning, fine-tune them, and fit a posterior over them.

    Args:
        base: Folder or hub id of the pretrained model, which gets a new head.
        train: Labelled texts; the labels are classes or numbers.
        validation: Other labelled texts, to decide when to stop and to calibrate on.
        folder: Where everything goes, from `open_folder`. An interrupted run resumes there.
        settings: What shapes the run.
        config: What else to note in the record.
        show: Called with a description of each step, and with each result.
        progress: Show progress bars.

    Returns:
        The record, which is saved too.
    """
    settings = settings or BayesTuneSettings()
    work = _load(base, train, validation, settings, progress)
    # A whole model, and about as much again for the delta and the posterior.
    require_space(folder.folder, folder.option, 2 * count_bytes(work.network))
    show("Sampling the scales of the weights")
    choice = _choose(work, folder)
    show(choice)
    results: dict[str, Any] = {"chain": choice.scales.to_dict(choice.fraction)}
    if settings.agreement:
        show("Sampling on two halves of the data")
        agreement = _compare_halves(work, train, choice.fraction)
        show(agreement)
        results["agreement"] = agreement.to_dict()
    show(f"Fine-tuning {choice.subset.size:,} weights")
    tuned = fit.finetune(
        work.network,
        work.train,
        choice.subset,
        validation=work.validation,
        settings=FinetuneSettings(**settings.tuning, head=work.head),
        seed=settings.seed,
        checkpoint=folder.tuning_state,
        progress=progress,
    )
    show(tuned)
    model, size = _save(tuned, work, folder)
    show(f"Saved {folder.delta}, {format_bytes(size)}, and the model beside it")
    results = {**_summarise(tuned, folder, size, choice.head_size), **results}
    if settings.posterior != "none":
        show("Fitting a posterior over the fine-tuned weights")
        posterior = _fit(model, work, choice.subset, folder, show)
        show(posterior)
        results["posterior"] = posterior.summary()
        curve = posterior.precision_curve()
        if isinstance(posterior.likelihood, Categorical) and curve is not None:
            results["precision_curve"] = curve
    sizes = {"batch_size": settings.batch_size, "max_length": settings.max_length}
    of_model = {"head": choice.head_modules, "device": str(work.network.device)}
    configuration = {**(config or {}), **sizes, **of_model, **settings.to_dict()}
    record = Record("bayestune", configuration, results, settings.seed)
    record.save(folder.record)
    if not folder.keep_states:
        folder.remove_states()
    return record


@dataclass(frozen=True, eq=False)
class _Work:
    """A pretrained model with a new head, and its batches."""

    network: PreTrainedModel
    head: Head
    tokenizer: PreTrainedTokenizerBase
    train: TextLoader
    validation: TextLoader
    settings: BayesTuneSettings
    progress: bool

    def chain(self, loader: TextLoader) -> dict[str, Any]:
        """List the arguments of a chain over some batches."""
        course = asdict(schedule_chain(self.settings.chain_epochs * len(loader)))
        settings = LangevinSettings(**course, **self.settings.chain, head=self.head)
        return {"settings": settings, "seed": self.settings.seed, "progress": self.progress}


def _load(
    base: str | Path,
    train: TextTable,
    validation: TextTable,
    settings: BayesTuneSettings,
    progress: bool,
) -> _Work:
    labels = 1 if train.is_regression else train.classes("labels of train")
    if labels < 2 and not train.is_regression:
        raise ArgumentError("train must hold 2 classes or more, got 1. Add the other.")
    loaded = huggingface.load_with_head(
        base, labels=labels, seed=settings.seed, device=settings.device
    )
    huggingface.name_classes(loaded.model, train.label_names)
    held_out = _batches(validation, loaded.tokenizer, settings)
    return _Work(
        loaded.model,
        name_head(Problem(loaded.model), first_batch(held_out), loaded.head),
        loaded.tokenizer,
        _batches(train, loaded.tokenizer, settings, shuffle=True),
        held_out,
        settings,
        progress,
    )


def _batches(
    table: TextTable,
    tokenizer: PreTrainedTokenizerBase,
    settings: BayesTuneSettings,
    *,
    shuffle: bool = False,
) -> TextLoader:
    usual = BayesTuneSettings.max_length
    asked = None if settings.max_length == usual else settings.max_length
    return huggingface.make_text_loader(
        table,
        tokenizer,
        batch_size=settings.batch_size,
        max_length=TextLength(asked, usual).fit(tokenizer, "max_length"),
        shuffle=shuffle,
        seed=settings.seed,
    )


def _choose(work: _Work, folder: TunedFolder) -> ChosenWeights:
    """Run the chain, and choose by its scales."""
    chain = {**work.chain(work.train), "checkpoint": folder.chain_state}
    scales = fit.langevin(work.network, work.train, **chain)
    rule = work.settings.rule
    subset = select.bayestune(work.network, scales.means, **rule, head=work.head)
    names = find_head(work.network, work.head)
    size = sum(work.network.get_parameter(name).numel() for name in names)
    modules = tuple(dict.fromkeys(name.rpartition(".")[0] for name in names))
    fraction = rule.get("fraction", (subset.size - size) / scales.size)
    return ChosenWeights(subset, scales, fraction, size, modules)


def _compare_halves(work: _Work, table: TextTable, fraction: float) -> Agreement:
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
    chain = work.chain(first)
    return fit.agreement(work.network, first, second, fraction=fraction, **chain)


def _save(
    result: FinetuneResult, work: _Work, folder: TunedFolder
) -> tuple[PreTrainedModel, int]:
    """Save the delta and the model it makes; return the model and the delta's bytes."""
    assert result.delta is not None
    delta = result.delta.half() if work.settings.half else result.delta
    tuned = deepcopy(work.network)
    delta.apply(tuned)
    size = delta.save(folder.delta).stat().st_size
    huggingface.save_model(tuned, work.tokenizer, folder.model, overwrite=folder.overwrite)
    return tuned, size


def _summarise(
    result: FinetuneResult, folder: TunedFolder, size: int, head: int
) -> dict[str, Any]:
    """List the results of the fine-tune for a record."""
    assert result.delta is not None
    whole = sum(tensor.numel() for tensor in result.delta.replaced.values())
    return {
        "delta": str(folder.delta),
        "bytes": size,
        "weights": result.delta.subset.size + whole,
        "head": head,
        "best": asdict(result.best),
        "history": [asdict(epoch) for epoch in result.history],
    }


def _fit(
    tuned: PreTrainedModel,
    work: _Work,
    subset: Subset,
    folder: TunedFolder,
    show: Callable[[str], None],
) -> Posterior:
    """Fit a posterior over the fine-tuned weights and calibrate it on held-out texts."""
    method, steps = work.settings.posterior, max(100, 2 * len(work.train))
    swag = SwagSettings(
        steps=steps, trial_steps=steps // 5, checkpoint_every=CHECKPOINT_EVERY
    )
    arguments: dict[str, dict[str, Any]] = {
        # Single weights have no rows × columns to factor.
        "laplace": {"structure": "diag"},
        "swag": {"settings": swag, "seed": work.settings.seed},
    }
    if method == "laplace":
        subset = _keep_affine(tuned, subset, show)
    choices = FitChoices(
        method,
        folder.posterior,
        arguments[method],
        checkpoint=folder.posterior_state,
        overwrite=folder.overwrite,
    )
    return fit_posterior(
        tuned,
        work.train,
        work.validation,
        subset,
        choices,
        say=show,
        progress=work.progress,
    )


def _keep_affine(
    model: PreTrainedModel, subset: Subset, show: Callable[[str], None]
) -> Subset:
    """Drop what a Laplace posterior cannot hold, such as a norm inside a new head."""
    universe = coverage(model).universe
    parts = {name: part for name, part in subset.parts.items() if name in universe}
    if len(parts) == len(subset.parts):
        return subset
    affine = Subset(universe, parts, subset.origin)
    show(f"Leaving out {subset.size - affine.size:,} weights that are in no affine layer")
    return affine
