"""The answers of one method: how sure, whether right, how many to automate, class by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import smidgen.evaluate as evaluate
from smidgen.evaluate.scores import confidence_and_correct
from smidgen.outputs.predictive import ClassPredictive, Predictive

MOST_CLASSES = 40


@dataclass(frozen=True, eq=False)
class GivenAnswers:
    """The likeliest class of each row, or yes or no for each label.

    How sure each answer is and whether it is right: (B,), of labels (B, C).
    """

    predictive: Predictive
    targets: Tensor
    confidence: Tensor
    correct: Tensor

    @classmethod
    def of(cls, predictive: Predictive, targets: Tensor) -> GivenAnswers:
        """Take the answers of a categorical or Bernoulli predictive."""
        sure, right = confidence_and_correct("compare", predictive, targets)
        return cls(predictive, targets.detach().cpu(), sure.double(), right)

    @property
    def is_wrong(self) -> Tensor:
        """Whether a row has a wrong answer, (B,)."""
        right = self.correct == 1
        return ~(right if right.dim() == 1 else right.all(-1))


def list_automation(
    answers: GivenAnswers, max_errors: Sequence[float]
) -> list[dict[str, Any]]:
    """List the largest share that may be answered with so few errors, for each named error."""
    entries = []
    for max_error in max_errors:
        share = evaluate.automation_rate(
            answers.predictive, answers.targets, max_error=max_error
        )
        entries.append(
            {
                "max_error": max_error,
                **share.to_dict(),
                **_find_threshold(answers, share.value),
            }
        )
    return entries


def _find_threshold(answers: GivenAnswers, share: float) -> dict[str, float | None]:
    """Find the least confidence among the surest answers, and their error."""
    confidence, order = answers.confidence.flatten().sort(descending=True, stable=True)
    count = round(share * len(order))
    if not count:
        return {"threshold": None, "error": None}
    wrong = 1 - answers.correct.flatten()[order[:count]]
    return {"threshold": float(confidence[count - 1]), "error": float(wrong.mean())}


def list_classes(
    answers: GivenAnswers, names: Sequence[str] | None, threshold: float | None
) -> tuple[list[dict[str, Any]], int]:
    """Describe the answers class by class, or label by label; the most frequent classes.

    Args:
        answers: Of the rows.
        names: Of the classes; by default their numbers.
        threshold: The least confidence that is answered; None if nothing is.

    Returns:
        A description of each class, in the order of the classes, and how many with rows are
        left out.
    """
    predictive, targets = answers.predictive, answers.targets
    answered = torch.zeros_like(answers.correct, dtype=torch.bool)
    if threshold is not None:
        answered = answers.confidence >= threshold
    if isinstance(predictive, ClassPredictive):
        counts = torch.bincount(targets, minlength=predictive.class_count)
        present = int((counts > 0).sum())
        kept = counts.sort(descending=True, stable=True).indices[:MOST_CLASSES]
        places = sorted(int(place) for place in kept if counts[place])
        masks = [(place, targets == place) for place in places]
        columns = [
            (place, answers.confidence[m], answers.correct[m], answered[m])
            for place, m in masks
        ]
    else:
        present = answers.correct.shape[1]
        columns = [
            (
                place,
                answers.confidence[:, place],
                answers.correct[:, place],
                answered[:, place],
            )
            for place in range(min(present, MOST_CLASSES))
        ]
    rows = [
        {
            "name": name_class(place, names),
            "rows": len(right),
            "accuracy": float(right.mean()),
            "confidence": float(sure.mean()),
            "automation": float(given.double().mean()),
        }
        for place, sure, right, given in columns
    ]
    return rows, present - len(rows)


def name_class(number: int, names: Sequence[str] | None) -> str:
    """Name a class, a label or an output; by its number if it has no name."""
    return str(number) if names is None else names[number]
