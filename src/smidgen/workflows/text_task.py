"""One text task from end to end: fine-tune, choose, fit, tune, evaluate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from smidgen import fit, select
from smidgen.fit.calibration.calibrate import calibrate
from smidgen.integrations.huggingface import load_classifier, text_loader
from smidgen.integrations.text import TextTable
from smidgen.outputs.problem import Problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.runtime.record import Record
from smidgen.weights.subset import Subset
from smidgen.workflows.comparison import (
    compare,
    in_order,
    point_methods,
    posterior_method,
    seen_elsewhere,
)
from smidgen.workflows.posterior_notes import subset_summary

Say = Callable[[str], None]
Loader = DataLoader[dict[str, Tensor]]


@dataclass(frozen=True)
class TaskSettings:
    """Every number that shapes a run."""

    percent: float = 10.0
    epochs: int = 4
    patience: int = 4
    learning_rate: float = 1e-4
    batch_size: int = 16
    max_length: int = 64
    seed: int = 0


@dataclass(frozen=True)
class TextTask:
    """Data to train on, to choose by and to report on.

    `elsewhere` are other texts by name, to wonder about; `split` says how split human
    raters were on each test text, if that is known.
    """

    title: str
    train: TextTable
    validation: TextTable
    test: TextTable
    elsewhere: Mapping[str, TextTable] = field(default_factory=dict)
    split: tuple[float, ...] | None = None


@dataclass(frozen=True, eq=False)
class _Loaders:
    """Batches; all but the shuffled ones are in order of length, to save padding."""

    shuffled: Loader
    train: Loader
    validation: Loader
    test: Loader
    elsewhere: dict[str, Loader]


def run_task(
    task: TextTask,
    base: str | Path,
    settings: TaskSettings,
    *,
    kind: str,
    config: Mapping[str, Any],
    say: Say = print,
    progress: bool = True,
) -> Record:
    """Fine-tune an encoder on a task and compare posteriors with their baselines.

    Args:
        task: The data.
        base: Folder or hub id of the pretrained encoder.
        settings: The numbers of the run.
        kind: What the record calls this run.
        config: What else to note in the record.
        say: Told each step in a few words.
        progress: Draw progress bars; in a log, a line a minute.

    Returns:
        The record, ready for a report.
    """
    classes = len(task.train.label_names or set(task.train.labels or ()))
    model, tokenizer = load_classifier(base, labels=classes, seed=settings.seed)
    loaders = _loaders(task, tokenizer, settings)
    say(f"Fine-tuning on {len(task.train):,} texts: the point estimate (MAP)")
    tuned = fit.finetune(
        model,
        loaders.shuffled,
        loaders.validation,
        epochs=settings.epochs,
        patience=settings.patience,
        learning_rate=settings.learning_rate,
        seed=settings.seed,
        progress=progress,
    )
    problem = Problem(tuned.model)
    subsets = {
        "last-layer": select.last_layer(tuned.model),
        "sparse-kfac": select.sparse_kfac(tuned.model, percent=settings.percent),
    }
    posteriors = {}
    for name, subset in subsets.items():
        say(f"Fitting {name}: {subset.size:,} weights ({subset.fraction:.2%})")
        posteriors[name] = _fitted(problem, loaders, subset, progress)
    say("Evaluating on test texts" + (" and elsewhere" if loaders.elsewhere else ""))
    results = {
        **_evaluated(problem, posteriors, loaders, task, progress),
        "subset": subset_summary(problem, posteriors["sparse-kfac"], settings.percent),
        "finetuning": [asdict(epoch) for epoch in tuned.history],
    }
    chosen = posteriors["sparse-kfac"]
    kept = {"structure": chosen.structure, "approximation": chosen.approximation}
    noted = {"title": task.title, **config, **asdict(settings), **kept}
    return Record(kind, noted, results, seed=settings.seed)


def _loaders(
    task: TextTask, tokenizer: PreTrainedTokenizerBase, settings: TaskSettings
) -> _Loaders:
    def loader(table: TextTable, *, shuffle: bool = False) -> Loader:
        return text_loader(
            table if shuffle else table.take(table.by_length()),
            tokenizer,
            batch_size=settings.batch_size,
            max_length=settings.max_length,
            shuffle=shuffle,
            seed=settings.seed,
        )

    return _Loaders(
        loader(task.train, shuffle=True),
        loader(task.train),
        loader(task.validation),
        loader(task.test),
        {name: loader(table) for name, table in task.elsewhere.items()},
    )


def _fitted(
    problem: Problem, loaders: _Loaders, subset: Subset, progress: bool
) -> LaplacePosterior:
    posterior = fit.laplace(problem, loaders.train, subset, progress=progress)
    return calibrate(posterior, problem, loaders.validation, progress=progress)


def _evaluated(
    problem: Problem,
    posteriors: dict[str, LaplacePosterior],
    loaders: _Loaders,
    task: TextTask,
    progress: bool,
) -> dict[str, Any]:
    chosen = posteriors["sparse-kfac"]
    assert chosen.calibration is not None
    test = in_order(problem, loaders.test)
    methods, targets = point_methods(
        problem, test, temperature=chosen.calibration.map_scale, progress=progress
    )
    methods += [
        posterior_method(name, posterior, problem, test, progress=progress)
        for name, posterior in posteriors.items()
    ]
    methods = seen_elsewhere(
        methods, posteriors, problem, loaders.elsewhere, progress=progress
    )
    split = task.split and [task.split[i] for i in task.test.by_length()]
    sizes = {name: len(getattr(task, name)) for name in ("train", "validation", "test")}
    others = {name: len(table) for name, table in task.elsewhere.items()}
    return {
        **compare(methods, targets, split=split),
        "precision_curve": chosen.precision_curve(),
        "data": {**sizes, **others},
    }
