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
    """The share of rows, over the last axis, whose value has the target's side of zero."""
    return ((values > 0) == (targets > 0.5)).double().mean(-1)


def matthews(values: Tensor, targets: Tensor) -> Tensor:
    """Correlations of what is said and what is true; 0 if always the same is said."""
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
    """Score predictions: the task's own metric, what else is usual, and the mean NLL."""
    values, targets = values.double().cpu(), targets.double().cpu()
    found = {"metric": float(METRICS[metric](values, targets))}
    if noise is not None:
        error = (values - targets).square().mean()
        ranks = (average_ranks(each).double() for each in (values, targets))
        found["spearman"] = float(pearson(*ranks))
        found["rmse"] = float(error.sqrt())
        found["nll"] = nll_of_squares(float(error), noise)
        return found
    nll = torch.nn.functional.softplus(values) - targets * values
    found["accuracy"] = float(accuracy(values, targets))
    found["nll"] = float(nll.mean())
    return found
