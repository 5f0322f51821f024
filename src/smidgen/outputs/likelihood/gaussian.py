"""Regression with Gaussian noise: Λ = I / σ²."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, inf, log, pi
from typing import ClassVar

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DataError, is_number
from smidgen.outputs.likelihood.base import Likelihood, flatten_targets
from smidgen.outputs.links import Keep
from smidgen.outputs.predictive import GaussianPredictive
from smidgen.outputs.temperature_curve import NllCurve

_ROUNDING = 1e-9


def nll_of_squares(squares: float, noise: float) -> float:
    """Mean NLL of an output of mean squared residual `squares`, under variance σ²."""
    return 0.5 * (squares / noise + log(2 * pi * noise))


def squares_of_nll(nll: float, noise: float) -> float:
    """Mean squared residual of an output: the inverse of `nll_of_squares`."""
    return (2 * nll - log(2 * pi * noise)) * noise


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """Regression: targets (B, C) are outputs plus noise of variance σ², or σ²ρ_c.

    Curvature is accumulated for unit noise; a posterior divides it by σ², so fitting
    the noise never needs another pass. `relative` are the ρ_c of the outputs, where they
    differ in their noise; they shape the curvature and are fixed before it is summed.
    They are scaled to a geometric mean of one, and σ² takes the rest.
    """

    noise: float = 1.0
    relative: tuple[float, ...] | None = None
    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.noise) or not 0 < self.noise < inf:
            raise ArgumentError(
                f"noise must be a variance > 0, got {self.noise!r}. Leave it out to have it "
                "fitted."
            )
        ratios = self.relative
        if ratios is None:
            return
        if len(ratios) != self.outputs or min(ratios) <= 0:
            raise ArgumentError(
                f"relative must be {self.outputs} numbers > 0, got {ratios}."
            )
        log_mean = sum(map(log, ratios)) / len(ratios)
        # A mean of one up to rounding stays, so that stored values load unchanged.
        if abs(log_mean) > _ROUNDING:
            scaled = tuple(ratio * exp(-log_mean) for ratio in ratios)
            object.__setattr__(self, "relative", scaled)
            object.__setattr__(self, "noise", self.noise * exp(log_mean))

    @property
    def scale(self) -> float:
        """The noise variance σ²."""
        return self.noise

    def ratios(self, like: Tensor) -> Tensor:
        """Relative noise of each output, ρ_c, (C,)."""
        ratios = self.relative or (1.0,) * self.outputs
        return torch.tensor(ratios, dtype=like.dtype, device=like.device)

    def fit_noise(self, squared_residual: float) -> Gaussian:
        """Take the mean squared training residual, for relative noise one, as the noise."""
        if not squared_residual:
            raise DataError(
                "regression needs targets that differ from the outputs to fit its noise. "
                "Pass labelled data."
            )
        return replace(self, noise=squared_residual)

    def squares(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Squared residuals for relative noise one, (B, C), in fp64."""
        return (targets - outputs).double().square() / self.ratios(outputs.double())

    def root_columns(self, logits: Tensor) -> Tensor:
        """One column per output, 1/√ρ_c, for unit noise: (C, B, C)."""
        root = self.ratios(logits).rsqrt().diag()
        return root[:, None, :].expand(-1, logits.shape[0], -1)

    def draw_targets(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """Draw outputs with unit noise."""
        noise = torch.randn(logits.shape, dtype=torch.float64, generator=generator)
        return logits + noise.to(logits) * self.ratios(logits).sqrt()

    def gradient(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Compute (f − y)/ρ."""
        return (logits - targets) / self.ratios(logits)

    def predictive(
        self,
        outputs: Tensor,
        covariance: Tensor,
        *,
        link: str,
        temperature: float,
        normals: Tensor | None = None,
        top: int | None = None,
        keep: Keep = "all",
    ) -> GaussianPredictive:
        """A normal distribution for each output; link and temperature do not apply."""
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        return GaussianPredictive(outputs, variance, self._noise_of(outputs))

    def mixture(self, outputs: Tensor, temperature: float) -> GaussianPredictive:
        """Mean and variance of the function over samples (S, B, C)."""
        mean = outputs.mean(0)
        return GaussianPredictive(mean, outputs.var(0), self._noise_of(mean))

    def _noise_of(self, outputs: Tensor) -> Tensor:
        """The noise variance of every output, (B, C)."""
        return (self.noise * self.ratios(outputs)).expand_as(outputs).clone()

    def nll_curves(
        self,
        outputs: Tensor,
        targets: Tensor,
        *,
        link: str,
        normals: Tensor | None = None,
        top: int | None = None,
    ) -> Callable[[Tensor], NllCurve]:
        """Refuse: a regression has a noise variance where classes have a temperature."""
        raise ArgumentError("a regression has no temperature. Tune its noise instead.")

    def log_prob(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Sum over outputs of the log-density, (B,)."""
        noise = self.noise * self.ratios(logits)
        terms = (targets - logits).square() / noise + (2 * pi * noise).log()
        return -0.5 * terms.sum(-1)

    def check_targets(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return finite numbers (B, C), in the outputs' type; for one output (B,) will do."""
        targets = flatten_targets(targets, logits)
        if not torch.isfinite(targets).all():
            raise DataError(
                "targets must be finite numbers, got NaN or infinity. Leave those rows out."
            )
        return targets.to(logits.dtype)
