"""The one rule by which selectors pick: largest score first, ties to the lower index."""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor


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
