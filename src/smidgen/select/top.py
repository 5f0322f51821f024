"""Shares of rows, columns or weights, and how Sparse-KFAC picks: the largest scores first.

Ties go to the lower index. Single weights are picked by the same rule, in `largest`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from smidgen.errors import ArgumentError
from smidgen.weights.affine import ceil_fraction


def top(scores: Tensor, share: float) -> Tensor:
    """Pick the top share of a vector of scores, at least one.

    Args:
        scores: The scores, (n,).
        share: The share to pick, in (0, 1].

    Returns:
        The indices picked, ascending, on the CPU.
    """
    count = ceil_fraction(scores.numel(), share)
    order = scores.double().sort(descending=True, stable=True).indices
    return order[:count].sort().values.to("cpu", torch.int64)


def percent_share(percent: float) -> float:
    """Check percent of rows and of columns, and return it as a share, in (0, 1]."""
    return _share("percent", percent, 100, "percent of rows and of columns: try 10")


def fraction_share(fraction: float) -> float:
    """Check a fraction of the weights, and return it as a share, in (0, 1]."""
    return _share("fraction", fraction, 1, "a share of the weights: try 0.01")


def _share(name: str, value: float, whole: int, what: str) -> float:
    if not isinstance(value, (int, float)) or not 0 < value <= whole:
        raise ArgumentError(f"{name} must be in (0, {whole}], got {value!r}. It is {what}.")
    return value / whole
