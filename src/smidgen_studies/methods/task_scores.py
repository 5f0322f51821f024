"""A task's own score of one number for each row, for one set of rows or for many draws.

Values are the predictions of a regression, or the difference of two logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from smidgen.evaluate.association import average_ranks, correlations
from smidgen.outputs.likelihood.gaussian import nll_of_squares

Metric = Literal["accuracy", "matthews", "pearson"]


def pearson(values: Tensor, targets: Tensor) -> Tensor:
    """Correlations over the last axis; 0 where one side is constant."""
    return correlations(values, targets).nan_to_num(nan=0.0)


def accuracy(values: Tensor, targets: Tensor) -> Tensor:
    """The share of rows, over the last axis, whose value has the sign of its class."""
    return ((values > 0) == (targets > 0.5)).double().mean(-1)


def matthews(values: Tensor, targets: Tensor) -> Tensor:
    """Correlations of predicted and true classes; 0 if one class is always predicted."""
    return pearson((values > 0).double(), targets)


METRICS: Mapping[Metric, Callable[[Tensor, Tensor], Tensor]] = {
    "accuracy": accuracy,
    "matthews": matthews,
    "pearson": pearson,
}
"""Scores by name; higher is better."""


def score_task(
    metric: Metric, values: Tensor, targets: Tensor, noise: float | None = None
) -> dict[str, float]:
    """Score by the task's metric and other usual ones; `noise` is a regression's variance."""
    values, targets = values.double().cpu(), targets.double().cpu()
    scores = {"metric": float(METRICS[metric](values, targets))}
    if noise is not None:
        error = (values - targets).square().mean()
        ranks = (average_ranks(x).double() for x in (values, targets))
        return {
            **scores,
            "spearman": float(pearson(*ranks)),
            "rmse": float(error.sqrt()),
            "nll": nll_of_squares(float(error), noise),
        }
    nll = torch.nn.functional.softplus(values) - targets * values
    return {
        **scores,
        "accuracy": float(accuracy(values, targets)),
        "nll": float(nll.mean()),
    }
