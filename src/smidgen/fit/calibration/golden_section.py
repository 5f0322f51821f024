"""Golden-section search: the lowest point of functions with one valley, many at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_RATIO = (5**0.5 - 1) / 2


def minimize(
    score: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, *, steps: int = 48
) -> Tensor:
    """Search P functions between P pairs of numbers.

    Args:
        score: From places (P,) to values (P,).
        low: Where to begin, (P,).
        high: Where to end, (P,).
        steps: How often the brackets shrink, each time to 0.618 of what they were.

    Returns:
        The places of the lowest values, (P,).
    """
    inner = [high - _RATIO * (high - low), low + _RATIO * (high - low)]
    value = [score(each) for each in inner]
    for _ in range(steps):
        left = value[0] < value[1]
        high, low = torch.where(left, inner[1], high), torch.where(left, low, inner[0])
        wide = _RATIO * (high - low)
        moved = torch.where(left, high - wide, low + wide)
        found = score(moved)
        inner = [torch.where(left, moved, inner[1]), torch.where(left, inner[0], moved)]
        value = [torch.where(left, found, value[1]), torch.where(left, value[0], found)]
    return (low + high) / 2
