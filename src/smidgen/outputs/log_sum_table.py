"""Log-sum-exp of many classes as a function of the temperature, from few evaluations.

A calibration asks for log Σ_c e^(d_c/T) of every example at hundreds of temperatures, and for
its derivatives, while a thousand classes or a vocabulary have many d_c. In log T it is smooth:

    log Σ_c e^(d_c/T) = d_max/T + S(log T),  0 ≤ S ≤ log C,

so S is computed, with two derivatives, at the places of a fine grid around the temperatures
that are asked for, each once, and is a polynomial of degree five between two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, floor, log

import torch
from torch import Tensor

from smidgen.outputs.temperature_curve import Slopes

# Nats of log T between two places; temperatures of a scan from 1/100 to 100 are among them.
# Between two places the error is at most about 1e-6, with one peak over 50,000 equals.
_STEP = log(100.0) / 64
_SAME = 1e-9


class LogSumTable:
    """S(log T) and its derivatives in 1/T for rows (B,) of distances (B, C), −∞ left out."""

    def __init__(self, distances: Tensor) -> None:
        self.largest = distances.amax(-1)  # (B,)
        self.below = distances - self.largest[:, None]
        self.known: dict[int, Slopes] = {}

    def at(self, inverse: Tensor) -> Slopes:
        """Log-sum-exps and derivatives in 1/T, (..., B, 1), for 1/T of shape (..., 1, 1)."""
        found = [self._one(float(each)) for each in inverse.flatten()]
        shape = (*inverse.shape[:-2], len(self.largest), 1)
        values, first, second = (
            torch.stack(parts).reshape(shape) for parts in zip(*found, strict=True)
        )
        return values, first, second

    def _one(self, inverse: float) -> Slopes:
        place = -log(inverse) / _STEP
        left = round(place) if abs(place - round(place)) < _SAME else floor(place)
        part = place - left
        if abs(part) < _SAME:
            values, slopes, bends = self._node(left)
        else:
            values, slopes, bends = _interpolate(
                self._node(left), self._node(left + 1), part
            )
        # From log T to 1/T.
        first = -slopes / (_STEP * inverse)
        second = (bends / _STEP**2 + slopes / _STEP) / inverse**2
        return values + self.largest * inverse, first + self.largest, second

    def _node(self, place: int) -> Slopes:
        """S and its derivatives in units of a step, (B,), at one place."""
        if place not in self.known:
            inverse = exp(-place * _STEP)
            weights = (self.below * inverse).exp()
            total = weights.sum(-1)
            below = torch.where(weights > 0, self.below, 0)
            first = (weights * below).sum(-1) / total
            second = (weights * below.square()).sum(-1) / total - first.square()
            slope = -inverse * first
            bend = inverse**2 * second - slope
            self.known[place] = (total.log(), _STEP * slope, _STEP**2 * bend)
        return self.known[place]


def _interpolate(left: Slopes, right: Slopes, part: float) -> Slopes:
    """The polynomial of degree five through two places, and its derivatives."""
    # Its six coefficients: three from the left, three that make up for the right.
    start, slope, half = left[0], left[1], left[2] / 2
    rise = right[0] - start - slope - half
    turn = right[1] - slope - 2 * half
    bent = right[2] - 2 * half
    cubic = 10 * rise - 4 * turn + bent / 2
    quartic = -15 * rise + 7 * turn - bent
    quintic = 6 * rise - 3 * turn + bent / 2
    coefficients = [start, slope, half, cubic, quartic, quintic]

    def evaluate(factors: Callable[[int], int], lower: int) -> Tensor:
        terms = [
            factors(power) * part ** (power - lower) * coefficient
            for power, coefficient in enumerate(coefficients)
            if power >= lower
        ]
        return torch.stack(terms).sum(0)

    return (
        evaluate(lambda power: 1, 0),
        evaluate(lambda power: power, 1),
        evaluate(lambda power: power * (power - 1), 2),
    )
