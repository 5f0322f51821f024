"""Which score of uncertainty tells wrong answers from right ones, and other data from these?

Each is compared with what the model says without any posterior: the confidence of its
answers for errors, the entropy for other data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import smidgen.evaluate as evaluate
from smidgen.decide import uncertainty
from smidgen.decide.uncertainty import list_scores
from smidgen.evaluate.intervals import Interval
from smidgen.outputs.predictive import ClassPredictive, Predictive
from smidgen.runtime.record import BASELINES
from smidgen.workflows.decisions.answers import GivenAnswers
from smidgen.workflows.method import Method

_DRAWS = 300


def score_errors(method: Method, answers: GivenAnswers) -> dict[str, dict[str, float]]:
    """Compute the AUROC of telling wrong rows from right ones, for each score."""
    wrong = answers.is_wrong
    if wrong.all() or not wrong.any():
        return {}
    scores = _list_scores(method)
    found = {score: uncertainty(method.predictive, score) for score in scores}
    return {
        score: evaluate.auroc_interval(values[~wrong], values[wrong]).to_dict()
        for score, values in found.items()
    }


def score_shifts(method: Method) -> dict[str, dict[str, dict[str, float]]]:
    """Compute the AUROC of telling each shifted set from the test data, for each score."""
    scores = _list_scores(method)
    inside = {score: uncertainty(method.predictive, score) for score in scores}
    return {
        name: {
            score: evaluate.auroc_interval(
                inside[score], uncertainty(other, score)
            ).to_dict()
            for score in scores
        }
        for name, other in method.shifted.items()
    }


def compare_scores(
    method: Method,
    baseline: Method,
    answers: GivenAnswers | None,
    others: GivenAnswers | None,
) -> list[dict[str, Any]]:
    """Compare each score of a method with a baseline's own, on the same rows."""
    gaps: dict[str, Interval] = {}
    scores = _list_scores(method)
    if answers is not None and others is not None:
        # How sure the baseline is of a row; of labels it is the entropy of them all.
        plain = _plain_score(baseline.predictive)
        theirs = uncertainty(baseline.predictive, plain)
        for score in scores:
            ours = uncertainty(method.predictive, score)
            gap = _compare_errors((ours, answers.is_wrong), (theirs, others.is_wrong))
            if gap is not None:
                gaps[f"error_detection.{score}"] = gap
    for name in method.shifted:
        if (
            name not in baseline.shifted
            or min(len(method.shifted[name]), _rows(method)) < 2
        ):
            continue
        second = tuple(
            uncertainty(predictive, "entropy")
            for predictive in (baseline.predictive, baseline.shifted[name])
        )
        for score in scores:
            first = tuple(
                uncertainty(predictive, score)
                for predictive in (method.predictive, method.shifted[name])
            )
            gaps[f"detection.{name}.{score}"] = evaluate.paired_auroc_difference(
                (first[0], first[1]), (second[0], second[1])
            )
    names = {"method": method.name, "baseline": baseline.name}
    return [{**names, "score": score, **gap.to_dict()} for score, gap in gaps.items()]


def _compare_errors(
    ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]
) -> Interval | None:
    """Compare two AUROCs of errors; None if one has no errors, or nothing else."""
    if any(wrong.sum() < 2 or (~wrong).sum() < 2 for _, wrong in (ours, theirs)):
        return None
    if torch.equal(ours[1], theirs[1]):
        wrong = ours[1]
        return evaluate.paired_auroc_difference(
            (ours[0][~wrong], ours[0][wrong]), (theirs[0][~wrong], theirs[0][wrong])
        )
    # The two err on different rows, so that rows are redrawn and not errors.
    return evaluate.bootstrap(
        lambda rows: _area(ours, rows) - _area(theirs, rows), len(ours[0]), draws=_DRAWS
    )


def _area(side: tuple[Tensor, Tensor], rows: Tensor) -> float:
    scores, wrong = (values[rows] for values in side)
    if wrong.all() or not wrong.any():
        return float("nan")
    return evaluate.auroc(scores[~wrong], scores[wrong])


def _list_scores(method: Method) -> Sequence[str]:
    """List the scores of a method; those of the model stand with the model."""
    of_model = () if method.name == BASELINES[0] else ("energy",)
    predictive = method.predictive
    weights = ("mutual_information", "logit_variance")
    # A regression's point prediction has a variance of the function, but it is zero.
    return [
        score
        for score in list_scores(predictive)
        if score not in of_model
        and (score not in weights or bool(uncertainty(predictive, score).any()))
    ]


def _plain_score(predictive: Predictive) -> str:
    return "confidence" if isinstance(predictive, ClassPredictive) else "entropy"


def _rows(method: Method) -> int:
    return len(method.predictive)
