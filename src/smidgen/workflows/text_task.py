"""One text task from end to end: fine-tune, choose weights, fit, calibrate, evaluate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

import smidgen.fit as fit
import smidgen.select as select
from smidgen.fit.calibration.calibrate import calibrate
from smidgen.integrations.huggingface import load_classifier, make_text_loader
from smidgen.integrations.text import TextTable
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Posterior
from smidgen.posterior.choice import Choice
from smidgen.runtime.record import Record
from smidgen.workflows.bayesify.one_call import bayesify
from smidgen.workflows.bayesify.settings import BayesifySettings
from smidgen.workflows.compare import describe_subset
from smidgen.workflows.decisions.score import add_decisions, find_rows
from smidgen.workflows.decisions.settings import CompareSettings
from smidgen.workflows.method import (
    predict_point,
    predict_posterior,
    predict_shifted,
    read_examples,
    score_methods,
)

Say = Callable[[str], None]
"""Takes the description of each step as it begins."""
# What the one call keeps, as a method of the record; and the smaller size that it tries.
_KEPT, _SMALLER = "bayesify", 3.0
TextLoader = DataLoader[dict[str, Tensor]]


@dataclass(frozen=True)
class TaskSettings:
    """Everything that shapes a run."""

    percent: float = 10.0
    epochs: int = 4
    patience: int = 4
    learning_rate: float = 1e-4
    batch_size: int = 16
    max_length: int = 64
    seed: int = 0


@dataclass(frozen=True)
class TextTask:
    """Data to train on, to choose with and to report on.

    `shifted` are other texts by name, of which the model should be less certain;
    `disagreement` is how much human raters disagreed on each test text, if known.
    """

    title: str
    train: TextTable
    validation: TextTable
    test: TextTable
    shifted: Mapping[str, TextTable] = field(default_factory=dict)
    disagreement: tuple[float, ...] | None = None


@dataclass(frozen=True, eq=False)
class _Loaders:
    """Batches; all but the shuffled ones are sorted by length, to save padding."""

    shuffled: TextLoader
    train: TextLoader
    validation: TextLoader
    test: TextLoader
    shifted: dict[str, TextLoader]


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
    """Fine-tune an encoder on a task and compare posteriors with their baselines."""
    classes = len(task.train.label_names or set(task.train.labels or ()))
    model, tokenizer = load_classifier(base, labels=classes, seed=settings.seed)
    loaders = _loaders(task, tokenizer, settings)
    say(f"Fine-tuning on {len(task.train):,} texts: the point estimate (MAP)")
    tuned = fit.finetune(
        model,
        loaders.shuffled,
        validation=loaders.validation,
        seed=settings.seed,
        progress=progress,
        settings=fit.FinetuneSettings(
            epochs=settings.epochs,
            patience=settings.patience,
            learning_rate=settings.learning_rate,
        ),
    )
    problem = Problem(tuned.model)
    subsets = {
        "last-layer": select.last_layer(tuned.model, loaders.train),
        "sparse-kfac": select.sparse_kfac(tuned.model, percent=settings.percent),
    }
    posteriors = {}
    for name, subset in subsets.items():
        say(f"Fitting {name}: {subset.size:,} weights ({subset.fraction:.2%})")
        posterior = fit.laplace(problem, loaders.train, subset, progress=progress)
        posteriors[name] = calibrate(
            posterior, problem, loaders.validation, progress=progress
        )
    kept, choice = _bayesify(problem, loaders, settings, say, progress)
    say("Evaluating on test texts" + (" and shifted ones" if loaders.shifted else ""))
    results = {
        **_evaluate(problem, {**posteriors, _KEPT: kept}, loaders, task, progress),
        "primary": _KEPT,
        "choice": choice.describe(),
        "subset": describe_subset(tuned.model, subsets["sparse-kfac"]),
        "precision_curve": posteriors["sparse-kfac"].precision_curve(),
        "finetuning": [asdict(epoch) for epoch in tuned.history],
    }
    chosen = posteriors["sparse-kfac"]
    curvature = {"structure": chosen.structure, "approximation": chosen.approximation}
    configuration = {"title": task.title, **config, **asdict(settings), **curvature}
    return Record(kind, configuration, results, seed=settings.seed)


def _bayesify(
    problem: Problem, loaders: _Loaders, settings: TaskSettings, say: Say, progress: bool
) -> tuple[Posterior, Choice]:
    """Let the one call choose, and say what it kept."""
    say("Trying several, to keep the cheapest that is not clearly worse than the best")
    kept = bayesify(
        problem,
        loaders.train,
        loaders.validation,
        settings=BayesifySettings(percents=(_SMALLER, settings.percent)),
        seed=settings.seed,
        progress=progress,
    )
    assert kept.choice is not None
    say(kept.choice.verdict())
    return kept, kept.choice


def _loaders(
    task: TextTask, tokenizer: PreTrainedTokenizerBase, settings: TaskSettings
) -> _Loaders:
    def loader(table: TextTable, *, shuffle: bool = False) -> TextLoader:
        return make_text_loader(
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
        {name: loader(table) for name, table in task.shifted.items()},
    )


def _evaluate(
    problem: Problem,
    posteriors: Mapping[str, Posterior],
    loaders: _Loaders,
    task: TextTask,
    progress: bool,
) -> dict[str, Any]:
    """Score the baselines and the posteriors on the test texts."""
    kept = posteriors[_KEPT]
    assert kept.calibration is not None
    assert kept.choice is not None
    # What the one call gave is said in its name.
    labels = {_KEPT: f"{_KEPT}: {kept.choice.kept_candidate.label}"}
    problem = problem.with_likelihood(kept.likelihood)
    test = read_examples(problem, loaders.test, progress=progress)
    methods, targets = predict_point(problem.likelihood, test, kept.calibration.map_scale)
    methods += [
        predict_posterior(
            name, posterior, problem, test, label=labels.get(name), progress=progress
        )
        for name, posterior in posteriors.items()
    ]
    methods = predict_shifted(
        methods, posteriors, problem, loaders.shifted, progress=progress
    )
    order = task.test.by_length()
    disagreement = task.disagreement and [task.disagreement[i] for i in order]
    sizes = {name: len(getattr(task, name)) for name in ("train", "validation", "test")}
    shifted = {name: len(table) for name, table in task.shifted.items()}
    results = score_methods(methods, targets, disagreement=disagreement)
    settings = CompareSettings(
        texts=task.test.take(order).join_pairs(),
        row_numbers=order,
        class_names=task.train.label_names,
    )
    rows = find_rows(settings, problem.model, test, methods[0].predictive)
    return {
        **add_decisions(results, methods, rows, settings, _KEPT),
        "data": {**sizes, **shifted},
    }
