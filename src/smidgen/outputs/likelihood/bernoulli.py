"""C independent yes/no labels: Λ = diag(p(1 − p))."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from smidgen.errors import DataError
from smidgen.outputs.information import mixture_information
from smidgen.outputs.likelihood.base import Likelihood, flatten_targets
from smidgen.outputs.links import (
    Keep,
    append_axes,
    both_outcomes,
    divide_mean,
    log_mean,
    two_class_link,
)
from smidgen.outputs.predictive import BernoulliPredictive
from smidgen.outputs.temperature_curve import NllCurve


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """C independent yes/no labels, one logit each; targets are 0 or 1, (B, C)."""

    kind: ClassVar[str] = "bernoulli"
    # Each label is a link of two classes; there the diagonal probit is the probit.
    links: ClassVar[tuple[str, ...]] = ("quadrature", "probit", "diagonal-probit")

    def root_columns(self, logits: Tensor) -> Tensor:
        """One column per label, √(p(1 − p)): (C, B, C)."""
        root = (logits.sigmoid() * (-logits).sigmoid()).sqrt()
        return torch.diag_embed(root).transpose(0, 1)

    def draw_targets(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """Draw every label."""
        uniform = torch.rand(logits.shape, dtype=torch.float64, generator=generator)
        return (uniform.to(logits.device) < logits.sigmoid()).to(logits.dtype)

    def gradient(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Compute p − y."""
        return logits.sigmoid() - targets

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
    ) -> BernoulliPredictive:
        """Probability of each label."""
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        log_probs = both_outcomes(two_class_link(link, variance), outputs / temperature)
        return BernoulliPredictive(log_probs, outputs, variance, temperature)

    def mixture(self, outputs: Tensor, temperature: float) -> BernoulliPredictive:
        """Mean probability of each label over samples (S, B, C)."""
        divided = divide_mean(outputs, temperature)
        draws = both_outcomes(torch.nn.functional.logsigmoid, divided)
        draws = draws.movedim(0, -2)  # (B, C, S, 2)
        return BernoulliPredictive(
            log_mean(draws),
            outputs.mean(0),
            outputs.var(0),
            temperature,
            mixture_information(draws).sum(-1),
        )

    def nll_curves(
        self,
        outputs: Tensor,
        targets: Tensor,
        *,
        link: str,
        normals: Tensor | None = None,
        top: int | None = None,
    ) -> Callable[[Tensor], NllCurve]:
        """Prepare the mean NLL, summed over labels."""
        towards = outputs * (2 * targets - 1)

        def curve(covariance: Tensor) -> NllCurve:
            log_yes = two_class_link(link, covariance.diagonal(dim1=-2, dim2=-1))
            return NllCurve(
                lambda temperature: (
                    -log_yes(towards / append_axes(temperature, 2)).sum(-1).mean(-1)
                )
            )

        return curve

    def log_prob(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Sum over labels of the log-probability, (B,)."""
        signs = 2 * targets - 1
        return torch.nn.functional.logsigmoid(signs * logits).sum(-1)

    def check_targets(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return zeros and ones (B, C), in the logits' type; for one label (B,) will do."""
        targets = flatten_targets(targets, logits)
        if not ((targets == 0) | (targets == 1)).all():
            raise DataError(
                f"labels must be 0 or 1 of shape {tuple(logits.shape)}, got "
                f"{targets.flatten().tolist()[:4]}…. Pass another likelihood."
            )
        return targets.to(logits.dtype)
