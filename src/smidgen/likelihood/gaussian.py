"""Regression with Gaussian noise: Λ = I / σ²."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log, pi
from typing import ClassVar

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DataError
from smidgen.likelihood.base import Likelihood, one_row_each
from smidgen.predictive import GaussianPredictive


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """Regression: targets (B, C) are outputs plus noise of this variance, σ².

    Curvature is accumulated for unit noise; a posterior divides it by σ², so fitting
    the noise never needs another pass.
    """

    noise: float = 1.0
    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        if not self.noise > 0:
            raise ArgumentError(f"noise is a variance and must be > 0, got {self.noise}.")

    @property
    def scale(self) -> float:
        """The noise variance σ²."""
        return self.noise

    def root_columns(self, logits: Tensor) -> Tensor:
        """The identity, for unit noise: (C, B, C)."""
        eye = torch.eye(self.outputs, dtype=logits.dtype, device=logits.device)
        return eye[:, None, :].expand(-1, logits.shape[0], -1)

    def predictive(
        self,
        outputs: Tensor,
        covariance: Tensor,
        *,
        link: str,
        temperature: float,
        normals: Tensor,
    ) -> GaussianPredictive:
        """A normal distribution for each output; link and temperature do not apply."""
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        return GaussianPredictive(outputs, variance, self.noise)

    def nll_of_temperature(
        self,
        outputs: Tensor,
        covariance: Tensor,
        targets: Tensor,
        *,
        link: str,
        normals: Tensor,
    ) -> Callable[[float | Tensor], Tensor]:
        """Refuse: a regression has a noise variance where classes have a temperature.

        Raises:
            ArgumentError: Always.
        """
        raise ArgumentError("a regression has no temperature. Tune its noise instead.")

    def log_prob(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Sum over outputs of the log-density, (B,)."""
        residuals = targets - logits
        constant = log(2 * pi * self.noise)
        return -0.5 * (residuals.square() / self.noise + constant).sum(-1)

    def checked_targets(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return finite numbers (B, C); for one output (B,) will do.

        Args:
            logits: The outputs, (B, C).
            targets: The targets of the kept rows.

        Returns:
            The targets, in the outputs' type.

        Raises:
            DataError: If they are anything else.
        """
        targets = one_row_each(targets, logits)
        if not torch.isfinite(targets).all():
            raise DataError(
                "targets must be finite numbers, got NaN or infinity. Leave those rows out."
            )
        return targets.to(logits.dtype)
