"""The prior of BayesTune with its scales integrated out, in closed form.

A weight is Laplace around its pretrained value, θ ~ Laplace(θ̄, λ), and its scale Gamma,
λ ~ Gamma(α, rate β). Given Δ = |θ − θ̄| the scale is generalised inverse Gaussian,
p(λ | Δ) ∝ λ^(α−2) exp(−βλ − Δ/λ), so with x = βΔ and the Bessel functions K

    E[λ | Δ]   = √(Δ/β) K_α(2√x) / K_{α−1}(2√x)
    E[1/λ | Δ] = √(β/Δ) K_{α−2}(2√x) / K_{α−1}(2√x) = −d/dΔ log p(θ)

and P(Δ > d) = 2 (βd)^{α/2} K_α(2√(βd)) / Γ(α).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gamma, inf, log
from typing import NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor

from smidgen.errors import ArgumentError

# Logarithms of x from below the smallest double to where K is no longer to be had.
_LOWEST, _HIGHEST, _PER_UNIT = -760, 40, 32
_CHUNK = 1 << 16
# Of an fp32 number's 23 bits of mantissa, those that do not choose its piece.
_LOW_BITS = 15
# Beyond this shape Δ E[1/λ] is too bent near zero for a rational function in √x.
_MOST_FITTED = 0.6
# A drift that is off by less than this needs no table.
_CLOSE_ENOUGH = 2e-3


@dataclass(frozen=True)
class ScalePrior:
    """Laplace around the pretrained value, its scale Gamma(shape α, rate β).

    Args:
        shape: α, in (0, 10]. Below 1 the density of a weight has a spike at its
            pretrained value; the smaller, the fewer weights leave it.
        rate: β > 0; the mean scale is α/β.

    Raises:
        ArgumentError: If shape is not in (0, 10], or rate is not positive.
    """

    shape: float = 0.01
    rate: float = 100.0

    def __post_init__(self) -> None:
        if not 0 < self.shape <= 10 or not 0 < self.rate < inf:
            raise ArgumentError(
                f"shape must be in (0, 10] and rate > 0, got {self.shape} and "
                f"{self.rate}. The paper has 0.01 and 100."
            )

    def mean(self, displacement: Tensor) -> Tensor:
        """E[λ | Δ] for displacements Δ ≥ 0, of any shape; max(α − 1, 0)/β at zero."""
        if displacement.dtype == torch.float32:
            return _look_up_bits(_bit_table(self.shape, self.rate), displacement)
        mean = _look_up(_tables(self.shape).mean, displacement * self.rate)
        return mean.masked_fill(displacement == 0, max(self.shape - 1, 0.0)) / self.rate

    def inverse_mean(self, displacement: Tensor) -> Tensor:
        """E[1/λ | Δ] for displacements Δ ≥ 0; at zero β/(α − 2), infinite for α ≤ 2."""
        ratio = _look_up(_tables(self.shape).pull, displacement * self.rate)
        limit = self.rate / (self.shape - 2) if self.shape > 2 else inf
        return (ratio / displacement).masked_fill(displacement == 0, limit)

    def pull(self, squares: Tensor) -> Tensor:
        """E[1/λ | Δ]/Δ at Δ² > 0, quickly: times θ − θ̄ it is minus the prior's drift."""
        # Within 0.2 percent of `inverse_mean`: a rational function of √Δ where one is that
        # close (α up to about 0.6), the table elsewhere.
        coefficients = _tables(self.shape).rational
        if coefficients is None:
            root = squares.sqrt()
            return self.inverse_mean(root).div_(root)
        # In √Δ, with the powers of √β in the coefficients.
        constant, linear, square, below = coefficients
        scale = self.rate**0.5
        root = squares.sqrt().sqrt_()
        above = (root * (square * scale**2)).add_(linear * scale).mul_(root).add_(constant)
        return above.div_((root * (below * scale)).add_(1).mul_(squares))

    def tail(self, distance: float) -> float:
        """P(Δ > distance) under the prior."""
        if distance <= 0:
            return 1.0
        half = (self.rate * distance) ** 0.5
        bessel = float(scipy.special.kve(self.shape, 2 * half)) * np.exp(-2 * half)
        return float(min(1.0, 2 * half**self.shape * bessel / gamma(self.shape)))

    def rounded_tail(
        self, distances: Sequence[float], rounding: float, power: float
    ) -> list[float]:
        """P(Δ > distance) under the density ∝ p(θ̄ + r)^power, r² = Δ² + rounding."""
        # What a chain samples whose steps cannot see the spike, by quadrature over log Δ;
        # the power is infinite without noise.
        if power == inf:
            return [0.0] * len(distances)
        # Below the core the density is flat, far above 1/β it is gone.
        lowest = 0.5 * log(rounding / max(power, 1.0)) - 20
        highest = max(log(1e6 / self.rate), lowest + 40)
        logs = np.linspace(lowest, highest, int(highest - lowest) * 4 * _PER_UNIT)
        root = np.sqrt(self.rate * np.sqrt(np.exp(2 * logs) + rounding))
        with np.errstate(all="ignore"):
            bessel = np.log(scipy.special.kve(abs(self.shape - 1), 2 * root)) - 2 * root
        exponent = power * ((self.shape - 1) * np.log(root) + bessel) + logs
        mass = np.nan_to_num(np.exp(exponent - np.nanmax(exponent)))
        # By the trapezoidal rule: of its own cell a point has half above it.
        above = np.cumsum(mass[::-1])[::-1] - mass / 2
        tails = np.interp(np.log(np.asarray(distances)), logs, above / above[0])
        return [float(tail) for tail in tails]


class _Tables(NamedTuple):
    """Logarithms of β E[λ] and Δ E[1/λ], and a rational function for the latter.

    Tables are cubic pieces on a grid of log x, (pieces, 4), highest power first. The
    rational function is None where none is close.
    """

    mean: Tensor
    pull: Tensor
    rational: tuple[float, float, float, float] | None


@lru_cache(maxsize=16)
def _tables(shape: float) -> _Tables:
    count = (_HIGHEST - _LOWEST) * _PER_UNIT + 1
    grid = np.linspace(_LOWEST, _HIGHEST, count)
    tables = []
    for logs, limit in zip(_logarithms(shape, grid), _limits(shape, grid), strict=True):
        spline = scipy.interpolate.CubicSpline(
            grid, np.where(np.isfinite(logs), logs, limit)
        )
        tables.append(torch.from_numpy(np.ascontiguousarray(spline.c.T)))
    return _Tables(tables[0], tables[1], _fit_rational(shape))


def _logarithms(shape: float, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log of β E[λ] and of Δ E[1/λ] at given log x."""
    root = np.exp(logs / 2)
    orders = shape, abs(shape - 2), abs(shape - 1)
    with np.errstate(all="ignore"):
        above, below, middle = (
            np.log(scipy.special.kve(order, 2 * root)) for order in orders
        )
        return logs / 2 + above - middle, logs / 2 + below - middle


def _limits(shape: float, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Their limits as x goes to zero, where a K of order above 1 overflows."""
    flat = np.zeros_like(logs)
    first = flat + log(shape - 1) if shape > 1 else flat - inf
    if shape > 2:
        return first, logs - log(shape - 2)
    return first, flat + log(1 - shape) if shape < 1 else flat + inf


def _fit_rational(shape: float) -> tuple[float, float, float, float] | None:
    """Fit Δ E[1/λ] by (a + b y + c y²)/(1 + d y), y = √x, to relative error."""
    if shape > _MOST_FITTED:
        return None
    logs = np.linspace(log(1e-16), log(1e4), 2000)
    root, target = np.exp(logs / 2), np.exp(_logarithms(shape, logs)[1])
    powers = root[:, None] ** np.arange(3)
    denominator = np.ones_like(root)
    for _ in range(20):
        # Linear in the coefficients once the last denominator weighs the rows.
        rows = np.hstack([powers, -target[:, None] * powers[:, 1:2]])
        rows = rows / (target * denominator)[:, None]
        sizes = np.abs(rows).max(0)
        fit = np.linalg.lstsq(rows / sizes, 1 / denominator, rcond=None)[0] / sizes
        denominator = 1 + root * fit[3]
    error = np.abs(powers @ fit[:3] / denominator / target - 1).max()
    # Positive coefficients have no pole, and large x is left to the leading ones.
    if not error < _CLOSE_ENOUGH or min(fit) <= 0:
        return None
    return float(fit[0]), float(fit[1]), float(fit[2]), float(fit[3])


@lru_cache(maxsize=16)
def _bit_table(shape: float, rate: float) -> Tensor:
    """Quadratics of E[λ | Δ] between fp32 numbers that share their first bits, (P, 3)."""
    width = 1 << _LOW_BITS
    # Up to, and not with, infinity and NaN.
    starts = torch.arange(0, 0x7F800000, width, dtype=torch.int64)
    places = torch.stack([starts, starts + width // 2, starts + width])
    places.clamp_(max=0x7F7FFFFF)
    values = places.to(torch.int32).view(torch.float32).double()
    first, middle, last = ScalePrior(shape, rate).mean(values)
    square = 2 * (first - 2 * middle + last) / width**2
    slope = (last - first) / width - square * width
    table = torch.stack([square, slope, first], 1).float()
    # Infinity and NaN, of a chain that broke, are NaN.
    broken = table.new_full(((1 << 31) // width - len(table), 3), torch.nan)
    return torch.cat([table, broken]).contiguous()


def _look_up_bits(table: Tensor, displacement: Tensor) -> Tensor:
    """Look fp32 numbers up by their own bits: no logarithm, a third of the time."""
    flat = displacement.detach().flatten()
    means = torch.empty_like(flat)
    pieces = table.to(flat.device)
    for x, target in zip(flat.split(_CHUNK), means.split(_CHUNK), strict=True):
        bits = x.view(torch.int32)
        # Without the sign, which NaN may have.
        index = (bits >> _LOW_BITS).bitwise_and_(len(pieces) - 1)
        rows = pieces.index_select(0, index)
        offset = (bits & ((1 << _LOW_BITS) - 1)).float()
        torch.addcmul(rows[:, 1], rows[:, 0], offset, out=target)
        target.mul_(offset).add_(rows[:, 2])
    return means.view_as(displacement)


def _look_up(table: Tensor, ratios: Tensor) -> Tensor:
    """Evaluate a table at x ≥ 0, piece by piece of a large tensor, in fp64."""
    flat = ratios.detach().flatten()
    values = torch.empty_like(flat)
    pieces = table.to(flat.device)
    for x, target in zip(flat.split(_CHUNK), values.split(_CHUNK), strict=True):
        logs = x.double().log_()
        # log 0 is −∞: any finite value serves, the caller fills in the limit.
        within = logs.nan_to_num(0.0, neginf=_LOWEST).clamp_(_LOWEST, _HIGHEST)
        index = within.sub(_LOWEST).mul_(_PER_UNIT).long().clamp_(max=len(pieces) - 1)
        offset = within - (index.double() / _PER_UNIT + _LOWEST)
        rows = pieces.index_select(0, index)
        value = rows[:, 0]
        for power in range(1, 4):
            value = value * offset + rows[:, power]
        # Beyond the grid both grow as √x.
        target.copy_(value.add_((logs - within).clamp_(min=0) / 2).exp_())
    return values.view_as(ratios)
