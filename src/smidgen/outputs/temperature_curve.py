"""Held-out NLL as a function of the temperature, with its slopes where draws are averaged.

For a target y and draws n_s of the logits' noise,

    p(y) = mean_s e^(n_sy) / Z_s,    Z_s = Σ_c e^(n_sc) e^(m_c),

with the means m_c as distances to the target's. The sum over classes is a product of
matrices, so exponentials of the noise, of which there are most, are taken once for all
temperatures; and with e^(m_c) m'_c beside e^(m_c) the same product gives the derivatives, at
little more than the cost of the value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from smidgen.outputs.links import (
    log_mean,
    matrix_root,
    pick_class,
    with_first_class,
)

Slopes = tuple[Tensor, Tensor, Tensor]
"""A function's values, and its first and second derivatives."""
Means = Callable[[Tensor], Slopes]
"""From 1/T (..., 1, 1) to means (..., B, C) as distances to the target's, and their
derivatives in 1/T, which broadcast."""
# A sum of exponentials, or a mean of ratios of them, may have lost terms below this that matter.
_SMALL = 1e-140


@dataclass(frozen=True, eq=False)
class NllCurve:
    """Mean NLL (P,) of temperatures (P,); with its derivatives in log T where they are known."""

    values: Callable[[Tensor], Tensor]
    slopes: Callable[[Tensor], Slopes] | None = None

    def __call__(self, temperature: float | Tensor) -> Tensor:
        """Compute the mean NLL."""
        return self.values(torch.as_tensor(temperature, dtype=torch.float64))


class TargetDraws:
    """Log-probabilities of targets under draws of the classes' noise.

    Args:
        normals: The draws, (S, C−1).
        places: Whose noise each target has, (B,).
        means: The classes' means as a function of 1/T.
        covariance: Of the logits' differences to the first class, (..., B, C−1, C−1).
    """

    def __init__(
        self, normals: Tensor, places: Tensor, means: Means, covariance: Tensor
    ) -> None:
        self.root = matrix_root(covariance)
        self.normals = normals.to(self.root).T
        self.means = means
        self.factors = _class_factors(self.root, self.normals)  # (..., B, C, S)
        self.places = places.expand(self.factors.shape[:-2])
        rows = self.places[..., None, None].expand(*self.places.shape, 1, len(normals))
        self.chosen = self.factors.gather(-2, rows)  # (..., B, 1, S)

    @property
    def curve(self) -> NllCurve:
        """The mean NLL."""
        return NllCurve(
            lambda temperature: -self.log_probs(temperature).mean(-1), self._mean_slopes
        )

    def log_probs(self, temperature: float | Tensor) -> Tensor:
        """Compute log p(y), (..., B), at temperatures (...)."""
        means = self._means_at(temperature)[0]
        weights, top = _scaled(means)
        sums = weights[..., None, :] @ self.factors  # (..., B, 1, S)
        probs = (self.chosen / sums).mean((-2, -1))  # (..., B), times e^top
        logs, lost = probs.log() - top, _find_lost(sums, probs)
        if lost.any():
            noise, own = self._noise_of(lost)
            drawn = (noise + means[lost][:, None]).logsumexp(-1)
            logs = logs.masked_scatter(lost, log_mean((own - drawn)[..., None])[..., 0])
        return logs

    def _means_at(self, temperature: float | Tensor) -> Slopes:
        like = self.factors
        given = torch.as_tensor(temperature, dtype=like.dtype, device=like.device)
        means, first, second = self.means(1 / given.reshape(*given.shape, 1, 1))
        shape = self.factors.shape[:-1]
        return means.expand(shape), first.expand(shape), second.expand(shape)

    def _noise_of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Draw the noise of some rows again, (L, S, C), and of their targets, (L, S)."""
        noise = with_first_class((self.root[rows] @ self.normals).mT)
        return noise, pick_class(noise, self.places[rows][:, None])

    def _mean_slopes(self, temperatures: Tensor) -> Slopes:
        """Compute the mean NLL and its derivatives in log T."""
        means, first, second = self._means_at(temperatures)
        weights, top = _scaled(means)
        bends = first.square() + second
        powers = torch.stack([weights, weights * first, weights * bends], -2)
        sums = powers @ self.factors  # (..., B, 3, S)
        ratios = self.chosen[..., 0, :] / sums[..., 0, :]  # (..., B, S)
        probs = ratios.mean(-1)
        logs, lost = probs.log() - top, _find_lost(sums[..., :1, :], probs)
        slopes, bends_of_draws = sums[..., 1:, :].div_(sums[..., :1, :]).unbind(-2)
        average, curving = _mix_slopes(ratios, slopes, bends_of_draws)
        if lost.any():
            noise, own = self._noise_of(lost)
            drawn = noise + means[lost][:, None]  # (L, S, C)
            total = drawn.logsumexp(-1)
            chances = (drawn - total[..., None]).exp()
            logs[lost] = log_mean((own - total)[..., None])[..., 0]
            average[lost], curving[lost] = _mix_slopes(
                (own - total).softmax(-1),
                (chances * first[lost][:, None]).sum(-1),
                (chances * bends[lost][:, None]).sum(-1),
            )
        # From 1/T = e^(−log T) to log T.
        inverse = 1 / temperatures
        slope, bend = -inverse * average.mean(-1), -inverse.square() * curving.mean(-1)
        return -logs.mean(-1), -slope, bend + slope


def _find_lost(sums: Tensor, probs: Tensor) -> Tensor:
    """Which rows (..., B) have sums (..., B, 1, S) or probabilities too small to be exact."""
    return (sums.amin((-2, -1)) < _SMALL) | ~(probs >= _SMALL)


def _mix_slopes(ratios: Tensor, slopes: Tensor, bends: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives (...) of log Σ_s e^(g_s)/Z_s from those of Z_s over Z_s itself, (..., S)."""
    # Of one draw they are −Z'/Z and (Z'/Z)² − Z''/Z; weights are the draws' shares.
    shares = ratios / ratios.sum(-1, keepdim=True)
    average = -(shares * slopes).sum(-1)
    curving = (shares * (2 * slopes.square() - bends)).sum(-1) - average.square()
    return average, curving


def means_of_all(logits: Tensor, targets: Tensor) -> Means:
    """Every class's mean, its distance (B, C) to the target's logit over T."""
    distances = logits - pick_class(logits, targets)[..., None]
    none = torch.zeros_like(distances[:1, :1])
    return lambda inverse: (distances * inverse, distances, none)


def _scaled(means: Tensor) -> tuple[Tensor, Tensor]:
    """Exponentials of means (..., C), scaled to one at most, and the log of the scale (...)."""
    top = means.amax(-1)
    return (means - top[..., None]).exp(), top


def _class_factors(root: Tensor, normals: Tensor) -> Tensor:
    """Exponentials of noise, (..., B, C, S), from its root; scaled to one at most."""
    # The first class has none: a row of zeros. All is done in place, as memory that is new
    # takes longer to get than to fill.
    noise = torch.nn.functional.pad(root, (0, 0, 1, 0)) @ normals
    return noise.sub_(noise.amax(-2, keepdim=True)).exp_()
