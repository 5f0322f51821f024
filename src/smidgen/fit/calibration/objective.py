"""Held-out NLL as a function of the outputs' covariance and of one free scale.

The scale is the temperature of a classifier, found by a search, or the noise variance of a
regression, whose best value is closed-form. Everything takes P covariances at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from math import exp, log, pi

import torch
from torch import Tensor

from smidgen.errors import DataError
from smidgen.fit.calibration.brent import minimize
from smidgen.outputs.likelihood import Gaussian, Likelihood
from smidgen.outputs.links import DRAWS, NODES, standard_normals
from smidgen.outputs.temperature_curve import NllCurve, Slopes

# Temperatures are searched from 1/100 to 100.
_LARGEST = log(100.0)
_SCANNED = 9
# Standard deviation of the normal prior on log T: a few dozen rows that are all right would
# have T → 0. It weighs less than one row, so hundreds do not notice it.
TEMPERATURE_SPREAD = 1.0
# Draws of the logits are made for a few precisions at a time.
_MOST_DRAWN = 2**22
# Of a search along slopes: the most steps, of at most a nat each, and how near is enough.
_STEPS, _NEAR = 40, 1e-7
# NLLs that differ by less, relatively, are the same.
_SAME = 1e-9
# Slopes that are not known are measured over so many nats, and so far are trusted.
_WIDTH, _MEASURED = 0.02, 1e-4


@dataclass(frozen=True, eq=False)
class Objective:
    """Held-out outputs (N, C) and targets, and how they are scored.

    `top` is how many classes of each example have a covariance; None for all. `draws` and
    `seed` are of a link that samples: the same draws as those of a prediction. Covariances
    are (P, N, K, K), for unit noise in a regression; None stands for a point estimate.
    """

    likelihood: Likelihood
    outputs: Tensor
    targets: Tensor
    link: str
    temperature: float = 1.0
    top: int | None = None
    draws: int = DRAWS
    seed: int = 0

    def __len__(self) -> int:
        return len(self.outputs)

    @property
    def own_scale(self) -> float:
        """The scale before any is chosen: the temperature, or the likelihood's noise."""
        if isinstance(self.likelihood, Gaussian):
            return self.likelihood.noise
        return self.temperature

    def nll(self, covariance: Tensor | None, scale: float | None = None) -> Tensor:
        """Compute the mean NLL under each covariance, (P,), at `scale` or at `own_scale`."""
        scale = self.own_scale if scale is None else scale
        if isinstance(self.likelihood, Gaussian):
            unit = self._unit_variances(covariance)
            return self._gaussian(unit, unit.new_full((len(unit),), scale))
        return self._by_pieces(
            covariance, lambda curve, count: curve(_repeat(scale, count))
        )

    def nll_at(self, covariance: Tensor, scales: Tensor) -> Tensor:
        """Compute the mean NLL under each covariance at a scale of its own, (P,)."""
        if isinstance(self.likelihood, Gaussian):
            return self._gaussian(self._unit_variances(covariance), scales)
        left = scales

        def score(curve: NllCurve, count: int) -> Tensor:
            nonlocal left
            some, left = left[:count], left[count:]
            return curve(some)

        return self._by_pieces(covariance, score)

    def penalty(self, scales: Tensor) -> Tensor:
        """What the prior adds to the mean NLL at each scale, (P,): of a noise, nothing."""
        if isinstance(self.likelihood, Gaussian):
            return torch.zeros_like(scales)
        return temperature_penalty(scales, len(self))

    def best(
        self, covariance: Tensor | None, *, near: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Find the best scale under each covariance and the mean NLL there, (P,) each."""
        # The lowest NLL with its penalty: whoever compares scales must add that too.
        # Temperatures near the best ones, (P,), save most of the search.
        if isinstance(self.likelihood, Gaussian):
            unit = self._unit_variances(covariance)
            noise = (self._squares() / (unit + 1)).mean((-2, -1))
            if not (noise > 0).all():
                raise DataError("all residuals are zero: there is no noise to fit.")
            return noise, self._gaussian(unit, noise)
        if near is None:
            _, temperatures, nlls = self.profile(covariance)
            return temperatures, nlls
        left = near.log()

        def search(curve: NllCurve, count: int) -> Tensor:
            nonlocal left
            some, left = left[:count], left[count:]
            return improve_temperatures(curve, some, len(self))

        temperatures, nlls = self._by_pieces(covariance, search)
        return temperatures, nlls

    def profile(self, covariance: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The mean NLL at the own scale, the best scale, and the NLL there, (P,) each."""
        if isinstance(self.likelihood, Gaussian):
            return (self.nll(covariance), *self.best(covariance))

        def search(curve: NllCurve, count: int) -> Tensor:
            own = curve(_repeat(self.own_scale, count))
            return torch.cat([own[None], best_temperatures(curve, count, len(self))])

        own, temperatures, nlls = self._by_pieces(covariance, search)
        return own, temperatures, nlls

    def _unit_variances(self, covariance: Tensor | None) -> Tensor:
        """Scale the variances of the outputs to noise one, (P, N, C)."""
        assert isinstance(self.likelihood, Gaussian)
        if covariance is None:
            return self.outputs.new_zeros(1, *self.outputs.shape)
        return covariance.diagonal(dim1=-2, dim2=-1) / self.likelihood.ratios(self.outputs)

    def _squares(self) -> Tensor:
        assert isinstance(self.likelihood, Gaussian)
        return self.likelihood.squares(self.outputs, self.targets)

    def _gaussian(self, unit: Tensor, noise: Tensor) -> Tensor:
        """Mean NLL under variance σ²(u + 1): relative noises multiply to one."""
        variance = noise[:, None, None] * (unit + 1)
        terms = self._squares() / variance + variance.log() + log(2 * pi)
        return 0.5 * terms.sum(-1).mean(-1)

    @cached_property
    def normals(self) -> Tensor | None:
        """The draws of a link that samples: the same for every candidate."""
        if self.link != "sampling":
            return None
        count = max(1, (self.top or self.likelihood.outputs) - 1)
        return standard_normals(self.draws, count, seed=self.seed)

    @cached_property
    def _curve(self) -> Callable[[Tensor], NllCurve]:
        """From covariances to the NLL as a function of temperatures; prepared once."""
        return self.likelihood.nll_curves(
            self.outputs,
            self.targets,
            link=self.link,
            normals=self.normals,
            top=self.top,
        )

    def _point_curve(self, temperatures: Tensor) -> Tensor:
        score, outputs = self.likelihood.log_prob, self.outputs.double()
        return torch.stack([-score(outputs / t, self.targets).mean() for t in temperatures])

    def _by_pieces(
        self, covariance: Tensor | None, score: Callable[[NllCurve, int], Tensor]
    ) -> Tensor:
        if covariance is None:
            return score(NllCurve(self._point_curve), 1)
        rows, classes = self.outputs.shape
        draws = {"sampling": self.draws, "quadrature": NODES}.get(self.link, 1)
        drawn = rows * (classes * draws if self.top is None else classes + self.top * draws)
        pieces = covariance.split(max(1, _MOST_DRAWN // drawn))
        return torch.cat([score(self._curve(piece), len(piece)) for piece in pieces], -1)


def _repeat(scale: float, count: int) -> Tensor:
    return torch.full((count,), scale, dtype=torch.float64)


def temperature_penalty(temperatures: Tensor, examples: int) -> Tensor:
    """What the prior on log T adds to the mean NLL of so many examples, (P,)."""
    return temperatures.log().square() / (2 * TEMPERATURE_SPREAD**2 * examples)


def _penalised(curve: NllCurve, examples: int) -> NllCurve:
    weight = 1 / (TEMPERATURE_SPREAD**2 * examples)

    def values(temperatures: Tensor) -> Tensor:
        return curve(temperatures) + temperature_penalty(temperatures, examples)

    def slopes(temperatures: Tensor) -> Slopes:
        assert curve.slopes is not None
        nlls, first, second = curve.slopes(temperatures)
        penalty = temperature_penalty(temperatures, examples)
        return nlls + penalty, first + weight * temperatures.log(), second + weight

    return NllCurve(values, None if curve.slopes is None else slopes)


def best_temperatures(curve: NllCurve, count: int, examples: int) -> Tensor:
    """Find the best temperatures on P curves of so many examples, and the NLLs: (2, P)."""
    # The NLL of a point estimate is convex in 1/T, but an average over draws may have two
    # valleys: the scan finds the deeper one.
    curve = _penalised(curve, examples)
    logs = torch.linspace(-_LARGEST, _LARGEST, _SCANNED, dtype=torch.float64)
    nlls = torch.stack([curve(_repeat(float(place.exp()), count)) for place in logs])
    lowest = nlls.argmin(0)  # (P,)
    low = logs[(lowest - 1).clamp_min(0)]
    high = logs[(lowest + 1).clamp_max(_SCANNED - 1)]
    if curve.slopes is None:
        found = minimize(lambda places: curve(places.exp()), low, high)
        best = curve(found.exp())
    else:
        found, best = _follow_slopes(curve.slopes, logs[lowest], low, high)
    require_scores(best)
    return torch.stack([found.exp(), best - temperature_penalty(found.exp(), examples)])


def improve_temperatures(curve: NllCurve, logs: Tensor, examples: int) -> Tensor:
    """Search from guesses of log T, (P,); temperatures and NLLs, (2, P)."""
    curve = _penalised(curve, examples)
    low, high = torch.full_like(logs, -_LARGEST), torch.full_like(logs, _LARGEST)
    if curve.slopes is None:
        slopes = partial(_measure_slopes, curve)
        found, best = _follow_slopes(slopes, logs, low, high, near=_MEASURED)
    else:
        found, best = _follow_slopes(curve.slopes, logs, low, high)
    return torch.stack([found.exp(), best - temperature_penalty(found.exp(), examples)])


def _follow_slopes(
    slopes: Callable[[Tensor], Slopes],
    place: Tensor,
    low: Tensor,
    high: Tensor,
    near: float = _NEAR,
) -> tuple[Tensor, Tensor]:
    """Newton's method in log T, (P,), kept between ends that close in; places and NLLs."""
    best, lowest = place, torch.full_like(place, torch.inf)
    for left in reversed(range(_STEPS)):
        nlls, first, second = slopes(place.exp())
        best = torch.where(nlls < lowest, place, best)
        lowest = torch.minimum(nlls, lowest)
        low = torch.where(first < 0, place, low)
        high = torch.where(first > 0, place, high)
        # Where the curve bends the wrong way, a nat downhill.
        step = torch.where(second > 0, -first / second, -first.sign()).clamp(-1, 1)
        aim = place + step
        aim = torch.where((aim > low) & (aim < high), aim, (low + high) / 2)
        moved = (aim - place).abs() > near
        if not moved.any() or not left:
            break
        place = torch.where(moved, aim, place)
    # Of two valleys the last may be the higher one; below that it is rounding.
    worse = nlls > lowest + _SAME * lowest.abs()
    return torch.where(worse, best, place), torch.where(worse, lowest, nlls)


def _measure_slopes(curve: NllCurve, temperatures: Tensor) -> Slopes:
    """Derivatives in log T from three values."""
    left, middle, right = (
        curve(temperatures * factor) for factor in (exp(-_WIDTH), 1.0, exp(_WIDTH))
    )
    bend = (left + right - 2 * middle) / _WIDTH**2
    return middle, (right - left) / (2 * _WIDTH), bend


def require_scores(nlls: Tensor) -> None:
    """Refuse to choose where a score is NaN, or none is finite."""
    if nlls.isnan().any() or not nlls.isfinite().any():
        raise DataError(
            f"the held-out NLL must be finite to choose by, got {nlls.tolist()[:3]}…. Check "
            "the validation data and the posterior's numbers."
        )
