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
class Answers:
    """How sure each answer is and whether it is right: (B,), of labels (B, C)."""

    confidence: Tensor
    correct: Tensor

    @classmethod
    def of(cls, predictive: Predictive, targets: Tensor) -> Answers:
        """Take the likeliest class of each row, or yes or no for each label."""
        return cls(*confidence_and_correct("compare", predictive, targets))

    @property
    def is_wrong(self) -> Tensor:
        """Whether a row has a wrong answer, (B,)."""
        right = self.correct == 1
        return ~(right if right.dim() == 1 else right.all(-1))


def list_automation(answers: Answers, max_errors: Sequence[float]) -> list[dict[str, Any]]:
    """List the largest share that may be answered with so few errors, for each named error."""
    entries = []
    for max_error in max_errors:
        share = evaluate.automation_rate(
            answers.confidence, answers.correct, max_error=max_error
        )
        entries.append({"max_error": max_error, **share.to_dict()})
    return entries


def list_classes(
    answers: Answers,
    predictive: Predictive,
    targets: Tensor,
    names: Sequence[str] | None,
    threshold: float | None,
) -> tuple[list[dict[str, Any]], int]:
    """Describe the answers class by class, or label by label; the most frequent classes.

    Args:
        answers: Of the rows.
        predictive: Of the same rows.
        targets: Classes (B,), or labels (B, C).
        names: Of the classes; by default their numbers.
        threshold: The least confidence that is answered; None if nothing is.

    Returns:
        A description of each class, in the order of the classes, and how many with rows are
        left out.
    """
    answered = torch.zeros_like(answers.correct, dtype=torch.bool)
    if threshold is not None:
        answered = answers.confidence >= threshold
    if isinstance(predictive, ClassPredictive):
        counts = torch.bincount(targets.cpu(), minlength=predictive.class_count)
        present = int((counts > 0).sum())
        kept = counts.sort(descending=True, stable=True).indices[:MOST_CLASSES]
        places = sorted(int(place) for place in kept if counts[place])
        masks = [(place, targets.cpu() == place) for place in places]
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
