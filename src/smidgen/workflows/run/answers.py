"""Answers for people: names of classes, sets, intervals, and when to ask somebody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from smidgen.outputs.predictive import ClassPredictive, GaussianPredictive, Predictive
from smidgen.workflows.run.ready_folder import Predictor

_PLAIN_WIDTH = 1.96
"""Standard deviations of a normal interval that holds 95 %."""


def list_answers(predictor: Predictor, predictive: Predictive) -> dict[str, list[Any]]:
    """List the columns of answers, one entry a row.

    Args:
        predictor: What predicted.
        predictive: What it says of each row.

    Returns:
        `answer`, then `confidence` and `set` of classes or `low` and `high` of a number,
        `abstain` and `strange`, as far as there are rules for them.
    """
    if isinstance(predictive, GaussianPredictive):
        columns = _list_numbers(predictor, predictive)
    else:
        assert isinstance(predictive, ClassPredictive)
        columns = _list_classes(predictor, predictive)
    rules = predictor.rules
    if rules.abstain is not None:
        columns["abstain"] = (~rules.abstain.apply(predictive)).tolist()
    if rules.strange is not None:
        columns["strange"] = rules.strange.apply(predictive).tolist()
    return columns


def list_probabilities(
    predictor: Predictor, predictive: Predictive
) -> list[dict[str, float]]:
    """List the probability of each class by its name, for every row."""
    names = predictor.task.note.classes or ()
    assert isinstance(predictive, ClassPredictive)
    probabilities = predictive.known_log_probs.exp().tolist()
    return [dict(zip(names, row, strict=True)) for row in probabilities]


def _list_classes(
    predictor: Predictor, predictive: ClassPredictive
) -> dict[str, list[Any]]:
    names = predictor.task.note.classes or ()
    columns: dict[str, list[Any]] = {
        "answer": [names[number] for number in predictive.predicted.tolist()],
        "confidence": _round(predictive.confidence),
    }
    if predictor.rules.sets is not None:
        inside = predictor.rules.sets.apply(predictive).tolist()
        columns["set"] = [_join(names, row) for row in inside]
    return columns


def _list_numbers(
    predictor: Predictor, predictive: GaussianPredictive
) -> dict[str, list[Any]]:
    rule = predictor.rules.intervals
    if rule is None:
        half = _PLAIN_WIDTH * predictive.total_variance.sqrt()
        low, high = predictive.mean - half, predictive.mean + half
    else:
        low, high = rule.apply(predictive)
    # (B, 1) each, in the model's unit.
    ends = {"answer": predictive.mean, "low": low, "high": high}
    unscale = predictor.task.unscale
    return {name: _round(unscale(values)[:, 0]) for name, values in ends.items()}


def _join(names: Sequence[str], inside: Sequence[bool]) -> str:
    return "|".join(name for name, is_in in zip(names, inside, strict=True) if is_in)


def _round(values: Tensor) -> list[float]:
    """Six significant digits: more than any of it is worth."""
    return [float(f"{value:.6g}") for value in values.tolist()]
