"""Brent's method: the lowest point of functions with one valley, many at once.

Steps go to the lowest point of a parabola through the three best places, or where that
leads nowhere by golden section: a dozen evaluations where golden section takes thirty.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_GOLDEN = (3 - 5**0.5) / 2
# Around its lowest point a smooth function is flat to the square of this.
_TOLERANCE = 4e-6


def minimize(
    score: Callable[[Tensor], Tensor], low: Tensor, high: Tensor, *, steps: int = 48
) -> Tensor:
    """Search P functions between P pairs of numbers; return the lowest places, (P,)."""
    first = low + _GOLDEN * (high - low)
    places, values = [first] * 3, [score(first)] * 3  # the lowest place first
    step = before = torch.zeros_like(first)
    for _ in range(steps):
        place, middle = places[0], (low + high) / 2
        done = (place - middle).abs() + (high - low) / 2 <= 2 * _TOLERANCE
        if done.all():
            break
        # Steps must at least halve every second time: rounding may mislead a parabola.
        parabola = _lowest_of_parabola(places, values)
        aim = place + parabola
        useful = (parabola.abs() < before.abs() / 2) & (aim > low) & (aim < high)
        side = torch.where(place < middle, high - place, low - place)
        before, step = (
            torch.where(useful, step, side),
            torch.where(useful, parabola, _GOLDEN * side),
        )
        # As near as that to a known place nothing is learned: look on its other side.
        aim = place + step
        close = (aim - low < _TOLERANCE) | (high - aim < _TOLERANCE)
        close |= step.abs() < _TOLERANCE
        step = torch.where(close, torch.copysign(side * 0 + _TOLERANCE, side), step)
        moved = torch.where(done, place, place + step)
        value = score(moved)
        better, right = value <= values[0], moved >= place
        end = torch.where(better, place, moved)
        low, high = (
            torch.where(right == better, end, low),
            torch.where(right == better, high, end),
        )
        places, values = _insert(places, values, moved, value)
    return places[0]


def _insert(
    places: list[Tensor], values: list[Tensor], place: Tensor, value: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Put one more place among the three lowest; a later one goes before its equals."""
    for index in range(3):
        lower = value <= values[index]
        # Until three places differ, those that are the first one give way.
        lower |= (places[index] == places[0]) & (index > 0)
        places[index], place = (
            torch.where(lower, place, places[index]),
            torch.where(lower, places[index], place),
        )
        values[index], value = (
            torch.where(lower, value, values[index]),
            torch.where(lower, values[index], value),
        )
    return places, values


def _lowest_of_parabola(places: list[Tensor], values: list[Tensor]) -> Tensor:
    """How far from the first place the parabola through all three has its lowest point."""
    second, third = places[1] - places[0], places[2] - places[0]
    rise, other = second * (values[2] - values[0]), third * (values[1] - values[0])
    # NaN where two places are one; no comparison takes that.
    return (second * rise - third * other) / (2 * (rise - other))
