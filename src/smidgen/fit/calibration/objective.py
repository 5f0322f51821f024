"""Held-out NLL as a function of the outputs' covariance and of one free scale.

The scale is the temperature of a classifier, found by a search, or the noise variance of a
regression, whose best value is closed-form. Everything takes P covariances at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log, pi

import torch
from torch import Tensor

from smidgen.errors import DataError
from smidgen.fit.calibration.golden_section import minimize
from smidgen.outputs.likelihood import Gaussian, Likelihood
from smidgen.outputs.links import standard_normals

_DRAWS = 64
# Temperatures are searched from 1/100 to 100.
_LARGEST = log(100.0)
# Shrinks the bracket to 5e-6 of a nat, where the NLL is flat to 1e-11.
_STEPS = 30
Curve = Callable[[Tensor], Tensor]
"""From temperatures (P,) to mean NLLs (P,)."""
# Draws of the logits are made for a few precisions at a time.
_MOST_DRAWN = 2**24


@dataclass(frozen=True, eq=False)
class Objective:
    """Held-out outputs (N, C) and targets, and how they are scored.

    `top` is how many classes of each example have a covariance; None for all. Covariances
    are (P, N, K, K), for unit noise in a regression; None stands for a point estimate.
    """

    likelihood: Likelihood
    outputs: Tensor
    targets: Tensor
    link: str
    temperature: float = 1.0
    top: int | None = None

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

    def best(self, covariance: Tensor | None) -> tuple[Tensor, Tensor]:
        """Find the best scale under each covariance and the mean NLL there, (P,) each."""
        if isinstance(self.likelihood, Gaussian):
            unit = self._unit_variances(covariance)
            noise = (self._squares() / (unit + 1)).mean((-2, -1))
            if not (noise > 0).all():
                raise DataError("all residuals are zero: there is no noise to fit.")
            return noise, self._gaussian(unit, noise)
        temperatures, nlls = self._by_pieces(covariance, best_temperatures)
        return temperatures, nlls

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

    @property
    def normals(self) -> Tensor:
        """The draws of a link that samples: the same for every candidate."""
        return standard_normals(_DRAWS, max(1, (self.top or self.likelihood.outputs) - 1))

    def _curve(self, covariance: Tensor) -> Curve:
        return self.likelihood.nll_of_temperature(
            self.outputs,
            covariance,
            self.targets,
            link=self.link,
            normals=self.normals,
            top=self.top,
        )

    def _point_curve(self, temperatures: Tensor) -> Tensor:
        score, outputs = self.likelihood.log_prob, self.outputs.double()
        return torch.stack([-score(outputs / t, self.targets).mean() for t in temperatures])

    def _by_pieces(
        self, covariance: Tensor | None, score: Callable[[Curve, int], Tensor]
    ) -> Tensor:
        if covariance is None:
            return score(self._point_curve, 1)
        rows, classes = self.outputs.shape
        draws = _DRAWS if self.link == "sampling" else 1
        drawn = rows * (classes * draws if self.top is None else classes + self.top * draws)
        pieces = covariance.split(max(1, _MOST_DRAWN // drawn))
        return torch.cat([score(self._curve(piece), len(piece)) for piece in pieces], -1)


def _repeat(scale: float, count: int) -> Tensor:
    return torch.full((count,), scale, dtype=torch.float64)


def best_temperatures(curve: Curve, count: int) -> Tensor:
    """Find the best temperatures on P curves, and the NLLs there: (2, P)."""
    # The NLL is convex in 1/T for a point estimate, so its curve has one valley.
    high = _repeat(_LARGEST, count)
    logs = minimize(lambda logs: curve(logs.exp()), -high, high, steps=_STEPS)
    nlls = curve(logs.exp())
    require_scores(nlls)
    return torch.stack([logs.exp(), nlls])


def require_scores(nlls: Tensor) -> None:
    """Refuse to choose where a score is NaN, or none is finite."""
    if nlls.isnan().any() or not nlls.isfinite().any():
        raise DataError(
            f"the held-out NLL must be finite to choose by, got {nlls.tolist()[:3]}…. Check "
            "the validation data and the posterior's numbers."
        )
