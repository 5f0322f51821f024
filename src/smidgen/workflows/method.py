"""Methods side by side on one test set: predict with each, then score them all.

Test data only report. The point estimate and temperature scaling are always shown beside
the posteriors, with intervals and paired differences. A regression has a noise variance
where a classifier has a temperature; both are called the *scale* here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

import smidgen.evaluate as evaluate
from smidgen.errors import DataError
from smidgen.evaluate.scores import confidence_and_correct
from smidgen.outputs.batches import as_batches
from smidgen.outputs.likelihood import Gaussian, Likelihood
from smidgen.outputs.likelihood.base import has_target
from smidgen.outputs.links import Link
from smidgen.outputs.predictive import (
    BernoulliPredictive,
    CategoricalPredictive,
    GaussianPredictive,
    Predictive,
)
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Posterior
from smidgen.prediction import point_outputs, predict_batches
from smidgen.report.names import label_method
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.record import BASELINES
from smidgen.types import Batch
from smidgen.workflows.naming import label_temperature

_TIMED_BATCHES, _TIMED_ROUNDS = 4, 5
# A slow prediction is timed once.
_TIMED_SECONDS = 20.0
_DRAWS = 300
# A record of more test rows would grow large; its intervals are narrow without them.
_MOST_LOSSES, _DIGITS = 10_000, 4


@dataclass(frozen=True, eq=False)
class Method:
    """One way of predicting, with its predictions for the test data and its cost."""

    name: str
    predictive: Predictive
    shifted: Mapping[str, Predictive] = field(default_factory=dict)  # by the data's name
    floats: int = 0  # stored beside the model
    relative_seconds: float | None = None  # a prediction's, over a plain forward pass's
    settings: Mapping[str, Any] = field(default_factory=dict)  # the rest of a record's row
    label: str | None = None  # for readers; by default from the table of methods


@dataclass(frozen=True, eq=False)
class Examples:
    """A data set read once, so that every method sees its batches in the same order."""

    batches: list[Batch]
    outputs: Tensor  # the point estimate's, of the rows that are scored, (N, C)
    targets: Tensor | None
    rows: Tensor  # bool, (R,): the rows with a label, or all if no row has one


def read_examples(
    problem: Problem,
    batches: Iterable[Batch],
    *,
    labelled: bool = True,
    progress: bool = True,
) -> Examples:
    """Read all batches once and run the model on them; leave out rows labelled −100."""
    batches = as_batches(batches)
    with preserve_random_state(problem.model):
        data = list(batches)
    outputs, targets = point_outputs(problem, data, labelled=labelled, progress=progress)
    rows = torch.ones(len(outputs), dtype=torch.bool)
    # The numbers of a regression may be −100 and mean it.
    if targets is not None and not isinstance(problem.likelihood, Gaussian):
        kept = has_target(targets)
        if kept.any():
            rows, outputs, targets = kept, outputs[kept], targets[kept]
        else:
            targets = None
    return Examples(data, outputs, targets, rows)


def predict_point(
    likelihood: Likelihood | None, test: Examples, scale: float | None
) -> tuple[list[Method], Tensor]:
    """Predict with the model as it is ("map") and, given a scale, rescaled ("temperature")."""
    if test.targets is None:
        raise DataError(
            "test must be labelled, got a batch without labels, or with -100 alone. Pass "
            "labelled data."
        )
    outputs, noisy = test.outputs, isinstance(likelihood, Gaussian)
    plain = Method("map", predict_from_outputs(likelihood, outputs), relative_seconds=1.0)
    if scale is None:
        return [plain], test.targets
    scaled = Method(
        "temperature",
        predict_from_outputs(likelihood, outputs, scale),
        relative_seconds=1.0,
        settings={"noise" if noisy else "temperature": scale},
        label=label_temperature(likelihood) if noisy else None,
    )
    return [plain, scaled], test.targets


def predict_from_outputs(
    likelihood: Likelihood | None, outputs: Tensor, scale: float | None = None
) -> Predictive:
    """Turn a model's plain outputs (N, C) into a predictive without weight uncertainty."""
    if likelihood is None or likelihood.kind == CategoricalPredictive.kind:
        return CategoricalPredictive.from_logits(outputs, scale or 1.0)
    if isinstance(likelihood, Gaussian):
        noise = (scale or likelihood.noise) * likelihood.ratios(outputs)
        zero = torch.zeros_like(outputs)
        return GaussianPredictive(outputs, zero, noise.expand_as(outputs).clone())
    return BernoulliPredictive.from_logits(outputs, scale or 1.0)


def predict_posterior(
    name: str,
    posterior: Posterior,
    problem: Problem,
    test: Examples,
    *,
    label: str | None = None,
    progress: bool = True,
) -> Method:
    """Predict with a posterior and measure what a prediction costs."""
    return Method(
        name,
        _predict_examples(posterior, problem, test, progress),
        floats=posterior.floats,
        relative_seconds=relative_seconds(posterior, problem, test.batches),
        settings=posterior.settings(),
        label=label,
    )


def predict_shifted(
    methods: Sequence[Method],
    posteriors: Mapping[str, Posterior],
    problem: Problem,
    shifted: Mapping[str, Iterable[Batch]],
    *,
    progress: bool = True,
) -> list[Method]:
    """Predict other data with the same methods, one data set in memory at a time."""
    predictives: dict[str, dict[str, Predictive]] = {m.name: {} for m in methods}
    for key, batches in shifted.items():
        # Of another task perhaps, whose labels are not this model's.
        data = read_examples(problem, batches, labelled=False, progress=progress)
        for method in methods:
            if method.name in posteriors:
                posterior = posteriors[method.name]
                predictive = _predict_examples(posterior, problem, data, progress)
            else:
                settings = method.settings
                scale = settings.get("temperature") or settings.get("noise")
                predictive = predict_from_outputs(problem.likelihood, data.outputs, scale)
            predictives[method.name][key] = predictive
    return [replace(method, shifted=predictives[method.name]) for method in methods]


def _predict_examples(
    posterior: Posterior, problem: Problem, data: Examples, progress: bool
) -> Predictive:
    """Predict with a posterior, and take the rows that are scored."""
    predictive = predict_batches(
        posterior, problem, data.batches, link=Link(keep="all"), progress=progress
    )
    return predictive.take(data.rows)


def relative_seconds(
    posterior: Posterior, problem: Problem, batches: Sequence[Batch]
) -> float:
    """Time a prediction against a plain forward pass: interleaved, the median ratio."""
    timed = batches[:: max(1, len(batches) // _TIMED_BATCHES)][:_TIMED_BATCHES]
    ratios: list[float] = []
    spent = 0.0
    while not ratios or (len(ratios) < _TIMED_ROUNDS and spent < _TIMED_SECONDS):
        started = time.perf_counter()
        point_outputs(problem, timed, progress=False)
        between = time.perf_counter()
        predict_batches(posterior, problem, timed, progress=False)
        ended = time.perf_counter()
        ratios.append((ended - between) / (between - started))
        spent += ended - started
    return median(ratios)


def score_methods(
    methods: Sequence[Method],
    targets: Tensor,
    *,
    disagreement: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Score all methods on the test data, the results of a record, in plain numbers."""
    baselines = [method for method in methods if method.name in BASELINES]
    return {
        "methods": [_score(method, targets, disagreement) for method in methods],
        "differences": [
            difference
            for method in methods
            for baseline in baselines
            if method.name not in ("map", baseline.name)
            for difference in _differences(method, baseline, targets, disagreement)
        ],
    }


def _score(
    method: Method, targets: Tensor, disagreement: Sequence[float] | None
) -> dict[str, Any]:
    predictive = method.predictive
    scores = evaluate.summarise(predictive, targets)
    row: dict[str, Any] = {
        "name": method.name,
        "label": method.label or label_method(method.name),
        "scores": {name: interval.to_dict() for name, interval in scores.items()},
        "floats": method.floats,
        "relative_seconds": method.relative_seconds,
        **list_losses(predictive, targets),
    }
    if not isinstance(predictive, GaussianPredictive):
        # With several labels, each yes or no is an answer by itself.
        answers = confidence_and_correct("compare", predictive, targets)
        confidence, correct = (values.flatten() for values in answers)
        curve = evaluate.reliability_curve(confidence, correct, bins=10)
        row["reliability"] = curve.to_dict()
        row["risk_coverage"] = evaluate.risk_coverage(confidence, correct).to_dict()
    row |= method.settings
    if method.shifted:
        row["detection"] = {
            name: evaluate.bootstrap_auroc(
                predictive.entropy, other.entropy, draws=_DRAWS
            ).to_dict()
            for name, other in method.shifted.items()
        }
    if disagreement is not None:
        values = torch.tensor(disagreement, dtype=torch.float64)
        row["disagreement"] = evaluate.rank_correlation(
            predictive.entropy, values
        ).to_dict()
    return row


def list_losses(predictive: Predictive, targets: Tensor) -> dict[str, list[float]]:
    """List the NLL of every test row, so that records of other methods can be paired with it.

    Args:
        predictive: Predictions of the test rows.
        targets: Their targets.

    Returns:
        `losses`, four digits of each; nothing if the rows are many.
    """
    if len(targets) > _MOST_LOSSES:
        return {}
    values = evaluate.nll(predictive, targets).tolist()
    return {"losses": [float(f"{value:.{_DIGITS}g}") for value in values]}


def _differences(
    method: Method,
    baseline: Method,
    targets: Tensor,
    disagreement: Sequence[float] | None,
) -> list[dict[str, Any]]:
    """Compare two methods on the same rows, score by score, with intervals."""
    pair = (method.predictive, baseline.predictive)
    losses = [evaluate.nll(p, targets) for p in pair]
    differences = {"nll": evaluate.paired_difference(*losses)}
    # One row has no spread, so only the NLL has something to say of it.
    several = len(losses[0]) > 1
    if several and not any(isinstance(p, GaussianPredictive) for p in pair):
        differences["squared_calibration"] = evaluate.paired_calibration_difference(
            *pair, targets
        )
    for name in method.shifted:
        if name in baseline.shifted and several and len(method.shifted[name]) > 1:
            differences[f"detection.{name}"] = evaluate.paired_auroc_difference(
                *(
                    (m.predictive.entropy, m.shifted[name].entropy)
                    for m in (method, baseline)
                )
            )
    if disagreement is not None:
        values = torch.tensor(disagreement, dtype=torch.float64)
        differences["disagreement"] = evaluate.paired_rank_difference(
            method.predictive.entropy, baseline.predictive.entropy, values
        )
    names = {"method": method.name, "baseline": baseline.name}
    return [
        {**names, "score": score, **difference.to_dict()}
        for score, difference in differences.items()
    ]
