"""Golden-section search: the lowest point of functions with one valley, many at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_RATIO = (5**0.5 - 1) / 2


def minimize(
    score: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, *, steps: int = 48
) -> Tensor:
    """Search P functions between P pairs of numbers; each step leaves 0.618 of a bracket."""
    inner = [high - _RATIO * (high - low), low + _RATIO * (high - low)]
    values = [score(place) for place in inner]
    for _ in range(steps):
        left = values[0] < values[1]
        high, low = torch.where(left, inner[1], high), torch.where(left, low, inner[0])
        width = _RATIO * (high - low)
        moved = torch.where(left, high - width, low + width)
        value = score(moved)
        inner = [torch.where(left, moved, inner[1]), torch.where(left, inner[0], moved)]
        values = [torch.where(left, value, values[1]), torch.where(left, values[0], value)]
    return (low + high) / 2
