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
from smidgen.likelihood import Gaussian, Likelihood
from smidgen.links import standard_normals
from smidgen.valley import lowest

_DRAWS = 64
# Temperatures are searched from 1/100 to 100.
_LARGEST = log(100.0)
# So often the bracket shrinks: to 5e-6 of a nat, where the NLL is flat to 1e-11.
_SHRUNK = 30
# Draws of the logits are made for a few precisions at a time.
_MOST_DRAWN = 2**24


@dataclass(frozen=True, eq=False)
class Objective:
    """Held-out outputs (N, C) and targets, and how they are scored.

    With `top`, covariances are of the likeliest m classes of each example: K = m − 1.
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
        """The scale without a choice: the temperature, or the likelihood's noise."""
        if isinstance(self.likelihood, Gaussian):
            return self.likelihood.noise
        return self.temperature

    def nll(self, covariance: Tensor, scale: float | None = None) -> Tensor:
        """Mean NLL under each covariance, (P,), at one scale or the likelihood's own."""
        wanted = self.own_scale if scale is None else scale
        if isinstance(self.likelihood, Gaussian):
            noise = covariance.new_full((len(covariance),), wanted)
            return self._gaussian(covariance, noise)
        return self._by_pieces(
            covariance, lambda piece: _at(piece, self._curve(piece), wanted)
        )

    def best(self, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """The best scale under each covariance and the mean NLL at it, (P,) each.

        Args:
            covariance: Covariances (P, N, K, K); for regression of unit noise.

        Returns:
            Scales and NLLs.

        Raises:
            DataError: If a regression has no residual at all.
        """
        if isinstance(self.likelihood, Gaussian):
            unit = self._unit(covariance)
            noise = (self._squares() / (unit + 1)).mean((-2, -1))
            if not (noise > 0).all():
                raise DataError("all residuals are zero: there is no noise to fit.")
            return noise, self._gaussian(covariance, noise)
        found = self._by_pieces(
            covariance, lambda piece: torch.stack(_searched(self._curve(piece), len(piece)))
        )
        return found[0], found[1]

    def none(self) -> Tensor:
        """The covariance of a point estimate, (1, N, K, K)."""
        if self.top is None:
            count = len(self.likelihood.directions(self.link))
        else:
            count = self.top - 1
        return self.outputs.new_zeros(1, len(self), count, count)

    def _unit(self, covariance: Tensor) -> Tensor:
        """Variances of the outputs where each has noise one, (P, N, C)."""
        assert isinstance(self.likelihood, Gaussian)
        return covariance.diagonal(dim1=-2, dim2=-1) / self.likelihood.ratios(self.outputs)

    def _squares(self) -> Tensor:
        assert isinstance(self.likelihood, Gaussian)
        return self.likelihood.squares(self.outputs, self.targets)

    def _gaussian(self, covariance: Tensor, noise: Tensor) -> Tensor:
        """Under variance σ²(u + 1): relative noises multiply to one."""
        unit = self._unit(covariance)
        variance = noise[:, None, None] * (unit + 1)
        terms = self._squares() / variance + variance.log() + log(2 * pi)
        return 0.5 * terms.sum(-1).mean(-1)

    @property
    def normals(self) -> Tensor:
        """The draws of a link that samples: the same for every candidate."""
        return standard_normals(_DRAWS, max(1, (self.top or self.likelihood.outputs) - 1))

    def _curve(self, covariance: Tensor) -> Callable[[Tensor], Tensor]:
        return self.likelihood.nll_of_temperature(
            self.outputs,
            covariance,
            self.targets,
            link=self.link,
            normals=self.normals,
            top=self.top,
        )

    def _by_pieces(self, covariance: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        rows, classes = self.outputs.shape
        draws = _DRAWS if self.link == "sampling" else 1
        drawn = rows * (classes * draws if self.top is None else classes + self.top * draws)
        pieces = covariance.split(max(1, _MOST_DRAWN // drawn))
        return torch.cat([score(piece) for piece in pieces], -1)


def _at(piece: Tensor, curve: Callable[[Tensor], Tensor], scale: float) -> Tensor:
    return curve(piece.new_full((len(piece),), scale, dtype=torch.float64))


def _searched(curve: Callable[[Tensor], Tensor], count: int) -> tuple[Tensor, Tensor]:
    """Best temperatures of P curves: the NLL is convex in 1/T, so each has one valley."""
    high = torch.full((count,), _LARGEST, dtype=torch.float64)
    found = lowest(lambda logs: curve(logs.exp()), -high, high, steps=_SHRUNK).exp()
    return found, curve(found)
