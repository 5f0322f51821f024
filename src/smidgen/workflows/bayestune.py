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
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from smidgen import fit, select
from smidgen.errors import ArgumentError
from smidgen.fit import Agreement, Scales, SparseFinetuneResult
from smidgen.fit.bayestune.langevin import chain_course
from smidgen.fit.calibration.calibrate import calibrate
from smidgen.fit.swag import SwagOptions
from smidgen.integrations import huggingface
from smidgen.integrations.text import TextTable
from smidgen.outputs.likelihood import Categorical
from smidgen.posterior.base import Posterior
from smidgen.runtime.memory import format_bytes
from smidgen.runtime.record import Record
from smidgen.weights.affine import coverage
from smidgen.weights.head import Head, find_head
from smidgen.weights.subset import Subset
from smidgen.workflows.bayestune_settings import BayesTuneSettings as BayesTuneSettings
from smidgen.workflows.swag import collect, keep
from smidgen.workflows.text_task import Loader, Say
from smidgen.workflows.tuned_folder import TunedFolder


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


Finding = Choice | Agreement | SparseFinetuneResult | Posterior
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
        progress: Draw progress bars; in a log, a line a minute.

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
    say(f"Saved {place.delta}, {format_bytes(size)}, and the model beside it")
    results = {**_summary(found, place, size, choice.head_size), **results}
    if settings.posterior != "none":
        say("Fitting a posterior over the tuned weights")
        posterior = _fitted(tuned, work, choice.subset, place, say)
        keep(posterior, place.posterior, say, overwrite=place.overwrite)
        show(posterior)
        results |= _posterior_results(posterior)
    sizes = {"batch_size": settings.batch_size, "max_length": settings.max_length}
    of_model = {"head": choice.head_modules, "device": str(work.network.device)}
    noted = {**(config or {}), **sizes, **of_model, **settings.to_dict()}
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
    labels = 1 if train.is_regression else train.classes("labels of train")
    if labels < 2 and not train.is_regression:
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
    names = find_head(work.network, work.head)
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
    found: SparseFinetuneResult, work: _Work, place: TunedFolder
) -> tuple[PreTrainedModel, int]:
    """Write the delta and the model it makes; return that and the delta's bytes."""
    delta = found.delta.half() if work.settings.half else found.delta
    tuned = deepcopy(work.network)
    delta.apply(tuned)
    size = delta.save(place.delta).stat().st_size
    huggingface.save_model(tuned, work.tokenizer, place.model, overwrite=place.overwrite)
    return tuned, size


def _summary(
    found: SparseFinetuneResult, place: TunedFolder, size: int, head: int
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
) -> Posterior:
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
    return calibrate(found, tuned, work.validation, progress=progress)


def _affine(model: PreTrainedModel, subset: Subset, say: Say) -> Subset:
    """What a Laplace posterior can hold: a new head may have a norm between its layers."""
    universe = coverage(model).universe
    parts = {name: part for name, part in subset.parts.items() if name in universe}
    if len(parts) == len(subset.parts):
        return subset
    kept = Subset(universe, parts)
    say(f"Leaving {subset.size - kept.size:,} weights out that are of no affine layer")
    return kept


def _posterior_results(posterior: Posterior) -> dict[str, Any]:
    """The posterior in numbers, and where a classifier has one the curve of its page."""
    results: dict[str, Any] = {"posterior": posterior.summary()}
    curve = posterior.precision_curve()
    if isinstance(posterior.likelihood, Categorical) and curve is not None:
        results["precision_curve"] = curve
    return results
