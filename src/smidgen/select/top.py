"""The one rule by which selectors pick: largest score first, ties to the lower index."""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor

from smidgen.errors import ArgumentError


def top(scores: Tensor, share: float) -> Tensor:
    """Pick the top share of a vector of scores, at least one.

    Args:
        scores: The scores, (n,).
        share: The share to pick, in (0, 1].

    Returns:
        The indices picked, ascending, on the CPU.
    """
    # 1e-9: a tenth of 30 is 3, whatever floating point makes of it.
    count = max(1, ceil(share * scores.numel() - 1e-9))
    order = scores.double().sort(descending=True, stable=True).indices
    return order[:count].sort().values.to("cpu", torch.int64)


def checked_share(name: str, value: float, whole: int, advice: str) -> float:
    """Check a size that is a share.

    Args:
        name: The argument.
        value: Its value.
        whole: What it is when everything is chosen: 1 or 100.
        advice: What to do next.

    Returns:
        The share, in (0, 1].

    Raises:
        ArgumentError: If it is not in (0, whole].
    """
    if not isinstance(value, (int, float)) or not 0 < value <= whole:
        raise ArgumentError(f"{name} must be in (0, {whole}], got {value!r}. {advice}")
    return float(value) / whole
