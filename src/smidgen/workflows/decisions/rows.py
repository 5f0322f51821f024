"""Test rows for a person to look at: the least certain, the strangest, intervals and truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from smidgen.decide import Rules, uncertainty
from smidgen.decide.strange import STRANGE_SCORES
from smidgen.decide.uncertainty import list_scores
from smidgen.outputs.predictive import (
    BernoulliPredictive,
    ClassPredictive,
    GaussianPredictive,
    Predictive,
)
from smidgen.workflows.decisions.answers import name_class

MOST_ROWS = 20
LONGEST_KEPT = 400
MOST_DRAWN = 80
MOST_OUTPUTS = 4
_DRAWN_COVERAGE = 0.95


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """The rows that are scored: their targets, their places in the test data, and texts."""

    targets: Tensor
    places: Tensor  # (B,): which rows of the test data they are, from 0
    texts: Sequence[str] | None = None  # of all rows of the test data
    numbers: Sequence[int] | None = (
        None  # of all rows of the test data, as the caller counts
    )
    names: Sequence[str] | None = None  # of classes, labels or outputs

    def describe(self, predictive: Predictive, row: int) -> dict[str, Any]:
        """Describe a row: which it is, its label, the answer and how sure that is."""
        place = int(self.places[row])
        number = place if self.numbers is None else int(self.numbers[place])
        entry = {"row": number, **_describe_answer(predictive, self, row)}
        if self.texts is not None:
            text = " ".join(self.texts[place].split())
            entry["text"] = text if len(text) <= LONGEST_KEPT else text[:LONGEST_KEPT] + "…"
        return entry


def list_least_certain(predictive: Predictive, rows: ScoredRows) -> list[dict[str, Any]]:
    """Describe the rows whose answers are least certain, the least certain first."""
    order = uncertainty(predictive, "entropy")
    if isinstance(predictive, ClassPredictive):
        order = -predictive.confidence.double()
    elif isinstance(predictive, BernoulliPredictive):
        order = -_sure_of_all(predictive)
    if not _differ(order):
        return []
    return [rows.describe(predictive, row) for row in _largest(order)]


def list_strangest(
    predictive: Predictive, rows: ScoredRows, rules: Rules | None
) -> tuple[str | None, list[dict[str, Any]]]:
    """Name the score of strangeness and describe the rows where it is largest."""
    known = list_scores(predictive)
    asked = getattr(getattr(rules, "strange", None), "score", None)
    for score in (asked, *STRANGE_SCORES):
        if score not in known:
            continue
        values = uncertainty(predictive, score)
        # Where all rows are alike, as those of a point prediction, none is strange.
        if _differ(values):
            return score, [
                {**rows.describe(predictive, row), "score": float(values[row])}
                for row in _largest(values)
            ]
    return None, []


def sample_truth(
    predictive: GaussianPredictive, rows: ScoredRows, rules: Rules | None
) -> dict[str, Any]:
    """Take some rows, evenly by their true value, with their intervals, for a picture."""
    rule = None if rules is None else rules.intervals
    mean = predictive.mean.double()
    coverage = _DRAWN_COVERAGE if rule is None else rule.coverage
    low, high = (
        predictive.central_interval(coverage) if rule is None else rule.apply(predictive)
    )
    targets = rows.targets.double().reshape(mean.shape)
    outputs = []
    for place in range(min(mean.shape[1], MOST_OUTPUTS)):
        order = targets[:, place].argsort(stable=True)
        count = min(MOST_DRAWN, len(order))
        even = torch.linspace(0, len(order) - 1, count, dtype=torch.float64)
        some = order[even.round().long()]
        columns = {"truth": targets, "mean": mean, "low": low, "high": high}
        outputs.append(
            {
                "name": name_class(place, rows.names),
                **{key: values[some, place].tolist() for key, values in columns.items()},
            }
        )
    return {"coverage": coverage, "by_rule": rule is not None, "outputs": outputs}


def _differ(values: Tensor) -> bool:
    return bool((values != values[0]).any())


def _largest(values: Tensor) -> list[int]:
    """List the rows of the largest values; of equals, the first."""
    order: list[int] = (
        values.sort(descending=True, stable=True).indices[:MOST_ROWS].tolist()
    )
    return order


def _sure_of_all(predictive: BernoulliPredictive) -> Tensor:
    """Compute the probability that every label of a row is right, (B,)."""
    return predictive.log_probs.double().max(-1).values.sum(-1).exp()


def _describe_answer(predictive: Predictive, rows: ScoredRows, row: int) -> dict[str, Any]:
    target, names = rows.targets[row], rows.names
    if isinstance(predictive, ClassPredictive):
        return {
            "label": name_class(int(target), names),
            "answer": name_class(int(predictive.predicted[row]), names),
            "confidence": float(predictive.confidence[row]),
        }
    if isinstance(predictive, BernoulliPredictive):
        both = predictive.log_probs[row]
        chosen = (both[:, 1] >= both[:, 0], target.reshape(-1) == 1)
        answer, label = (
            [name_class(int(place), names) for place in which.nonzero().flatten()]
            for which in chosen
        )
        sure = float(_sure_of_all(predictive)[row])
        return {"label": label, "answer": answer, "confidence": sure}
    assert isinstance(predictive, GaussianPredictive)
    # Of several outputs, the one whose deviation is largest for its noise.
    several = (predictive.total_variance[row] / predictive.noise[row]).argmax()
    place = int(several)
    return {
        "label": float(target.reshape(-1)[place]),
        "answer": float(predictive.mean[row, place]),
        "deviation": sqrt(float(predictive.total_variance[row, place])),
    }
