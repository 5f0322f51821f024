"""Methods side by side on one test set: what a record of a comparison holds.

Test data only report. The point estimate and temperature scaling are always shown
beside the posteriors, with intervals and paired differences.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from smidgen import evaluate
from smidgen.errors import DataError
from smidgen.outputs.predictive import CategoricalPredictive
from smidgen.outputs.problem import Problem
from smidgen.outputs.targets import has_target
from smidgen.posterior.base import Posterior
from smidgen.prediction import point_outputs, predict_batches
from smidgen.report.names import label_method
from smidgen.runtime.guard import preserve_model
from smidgen.runtime.record import BASELINES
from smidgen.types import Batch

_TIMED_BATCHES, _TIMED_ROUNDS = 4, 5
# One round is enough of what is slow.
_TIMED_SECONDS = 20.0
_DRAWS = 300


@dataclass(frozen=True, eq=False)
class Method:
    """One way of predicting, with its predictions and its cost.

    `elsewhere` holds predictions on other data, by name; `relative_seconds` is the time
    of a prediction over the time of a plain forward pass.
    """

    name: str
    predictive: CategoricalPredictive
    elsewhere: Mapping[str, CategoricalPredictive] = field(default_factory=dict)
    floats: int = 0
    relative_seconds: float | None = None
    settings: Mapping[str, float | bool | None] = field(default_factory=dict)


def in_order(problem: Problem, batches: Iterable[Batch]) -> list[Batch]:
    """Read batches once, so that all methods see one order also of a loader that shuffles.

    Args:
        problem: The model; its random state is as before.
        batches: The loader.

    Returns:
        The batches.
    """
    with preserve_model(problem.model):
        return list(batches)


def point_methods(
    problem: Problem,
    test: Iterable[Batch],
    *,
    temperature: float | None,
    progress: bool = True,
) -> tuple[list[Method], Tensor]:
    """Predict with the model as it is, and with its logits divided by a temperature.

    Args:
        problem: The model.
        test: Labelled test batches; rows labelled −100 are left out.
        temperature: Fitted on held-out data; None leaves that method out.
        progress: Draw progress bars; in a log, a line a minute.

    Returns:
        The methods "map" and "temperature" on the examples, or tokens, that have a label,
        and those labels.

    Raises:
        DataError: If a test batch has no labels.
    """
    logits, targets = _labelled_outputs(problem, test, progress)
    if targets is None:
        raise DataError(
            "the test data must have labels, and a batch has none, or -100 alone. Pass "
            "labelled data."
        )
    divisors = {"map": 1.0}
    if temperature is not None:
        divisors["temperature"] = temperature
    methods = [
        Method(
            name,
            CategoricalPredictive.from_logits(logits, divisor),
            relative_seconds=1.0,
            settings={} if name == "map" else {"temperature": divisor},
        )
        for name, divisor in divisors.items()
    ]
    return methods, targets


def posterior_method(
    name: str,
    posterior: Posterior,
    problem: Problem,
    test: Sequence[Batch],
    *,
    link: str = "auto",
    progress: bool = True,
) -> Method:
    """Predict with a posterior and measure what a prediction costs.

    Args:
        name: Name of the method in the record.
        posterior: The tuned posterior.
        problem: The model it belongs to.
        test: The batches that the point estimate saw, as `in_order` reads them; rows
            labelled −100 are left out.
        link: How logits become probabilities.
        progress: Draw progress bars; in a log, a line a minute.

    Returns:
        The method.
    """
    return Method(
        name,
        _predictive(posterior, problem, test, link, progress),
        floats=posterior.floats,
        relative_seconds=relative_seconds(posterior, problem, test, link=link),
        settings=posterior.settings(),
    )


def seen_elsewhere(
    methods: Sequence[Method],
    posteriors: Mapping[str, Posterior],
    problem: Problem,
    others: Mapping[str, Iterable[Batch]],
    *,
    progress: bool = True,
) -> list[Method]:
    """Predict other data with methods too; one data set is in memory at a time.

    Args:
        methods: Those of `point_methods` and `posterior_method`.
        posteriors: The posteriors among them, by the methods' names.
        problem: The model.
        others: Other data by name, with or without labels; each is read once.
        progress: Draw progress bars; in a log, a line a minute.

    Returns:
        The methods with those predictions.
    """
    made: dict[str, dict[str, CategoricalPredictive]] = {each.name: {} for each in methods}
    for key, batches in others.items():
        kept = in_order(problem, batches)
        logits, _ = _labelled_outputs(problem, kept, progress)
        for each in methods:
            if each.name in posteriors:
                own = posteriors[each.name]
                found = _predictive(own, problem, kept, "auto", progress)
            else:
                divisor = each.settings.get("temperature") or 1.0
                found = CategoricalPredictive.from_logits(logits, divisor)
            made[each.name][key] = found
    return [replace(each, elsewhere=made[each.name]) for each in methods]


def _predictive(
    posterior: Posterior,
    problem: Problem,
    batches: Sequence[Batch],
    link: str,
    progress: bool,
) -> CategoricalPredictive:
    """What a posterior predicts for the rows that count."""
    made = predict_batches(posterior, problem, batches, link=link, progress=progress)
    assert isinstance(made, CategoricalPredictive)
    wanted = [problem.targets(batch) for batch in batches]
    targets = [each.flatten() for each in wanted if each is not None]
    if len(targets) < len(wanted):
        return made
    return made.take(_counting(torch.cat(targets)))


def _labelled_outputs(
    problem: Problem, batches: Iterable[Batch], progress: bool
) -> tuple[Tensor, Tensor | None]:
    """Outputs and targets of the rows that count; None for targets that are not there."""
    outputs, targets = point_outputs(problem, batches, progress=progress)
    if targets is None:
        return outputs, None
    kept = _counting(targets)
    return outputs[kept], targets[kept] if has_target(targets).any() else None


def _counting(targets: Tensor) -> Tensor:
    """The rows with a label, and not padding; all of them in data that have none."""
    kept = has_target(targets)
    return kept if kept.any() else ~kept


def relative_seconds(
    posterior: Posterior,
    problem: Problem,
    batches: Sequence[Batch],
    *,
    link: str = "auto",
) -> float:
    """Time a prediction over a plain forward pass: interleaved, the median ratio."""
    some = batches[:: max(1, len(batches) // _TIMED_BATCHES)][:_TIMED_BATCHES]
    ratios: list[float] = []
    spent = 0.0
    while not ratios or (len(ratios) < _TIMED_ROUNDS and spent < _TIMED_SECONDS):
        started = time.perf_counter()
        point_outputs(problem, some, progress=False)
        between = time.perf_counter()
        predict_batches(posterior, problem, some, link=link, progress=False)
        ended = time.perf_counter()
        ratios.append((ended - between) / (between - started))
        spent += ended - started
    return median(ratios)


def compare(
    methods: Sequence[Method], targets: Tensor, *, split: Sequence[float] | None = None
) -> dict[str, Any]:
    """Score all methods on the test data: the results of a record.

    Args:
        methods: The methods; those of `BASELINES` are what the others are compared with.
        targets: The test labels.
        split: How split human raters were on each test example, if that is known.

    Returns:
        Plain numbers: scores with intervals, curves, paired differences.
    """
    baselines = [each for each in methods if each.name in BASELINES]
    return {
        "methods": [_scored(each, targets, split) for each in methods],
        "differences": [
            difference
            for each in methods
            for base in baselines
            if each.name not in ("map", base.name)
            for difference in _differences(each, base, targets)
        ],
    }


def _scored(
    method: Method, targets: Tensor, split: Sequence[float] | None
) -> dict[str, Any]:
    predictive = method.predictive
    correct = evaluate.correct(predictive, targets)
    confidence = predictive.confidence
    scores = evaluate.summarise(predictive, targets)
    found: dict[str, Any] = {
        "name": method.name,
        "label": label_method(method.name),
        "scores": {name: interval.to_dict() for name, interval in scores.items()},
        "floats": method.floats,
        "relative_seconds": method.relative_seconds,
        "reliability": evaluate.reliability_curve(confidence, correct, bins=10).to_dict(),
        "risk_coverage": evaluate.risk_coverage(confidence, correct).to_dict(),
        **method.settings,
    }
    if method.elsewhere:
        found["detection"] = {
            name: evaluate.bootstrap_auroc(
                predictive.entropy, other.entropy, draws=_DRAWS
            ).to_dict()
            for name, other in method.elsewhere.items()
        }
    if split is not None:
        disagreement = torch.tensor(split, dtype=torch.float64)
        found["disagreement"] = evaluate.rank_correlation(
            predictive.entropy, disagreement
        ).to_dict()
    return found


def _differences(method: Method, base: Method, targets: Tensor) -> list[dict[str, Any]]:
    pair = (method.predictive, base.predictive)
    nll = evaluate.paired_difference(*(evaluate.nll(p, targets) for p in pair))
    ece = evaluate.paired_calibration_difference(*pair, targets, draws=_DRAWS)
    return [
        {"method": method.name, "baseline": base.name, "score": score, **found.to_dict()}
        for score, found in (("nll", nll), ("ece_equal_mass", ece))
    ]
