"""C independent yes/no labels: Λ = diag(p(1 − p))."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from smidgen.errors import DataError
from smidgen.outputs.likelihood.base import Likelihood, flatten_targets
from smidgen.outputs.links import damping_factor
from smidgen.outputs.predictive import BernoulliPredictive, mixture_information


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """C independent yes/no labels, one logit each; targets are 0 or 1, (B, C)."""

    kind: ClassVar[str] = "bernoulli"
    # One logit for each label: the diagonal probit is the probit.
    links: ClassVar[tuple[str, ...]] = ("probit", "diagonal-probit")

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
        normals: Tensor,
        top: int | None = None,
    ) -> BernoulliPredictive:
        """Probability of each label, by the probit."""
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        probs = (outputs / temperature * damping_factor(variance)).sigmoid()
        return BernoulliPredictive(probs, outputs, variance, temperature)

    def mixture(self, outputs: Tensor, temperature: float) -> BernoulliPredictive:
        """Mean probability of each label over samples (S, B, C)."""
        scaled = outputs / temperature
        both = torch.stack([-scaled, scaled], -1)  # (S, B, C, 2)
        log_probs = torch.nn.functional.logsigmoid(both).movedim(0, -2)
        weights = outputs.new_full((len(outputs),), 1 / len(outputs))
        return BernoulliPredictive(
            scaled.sigmoid().mean(0),
            outputs.mean(0),
            outputs.var(0),
            temperature,
            mixture_information(log_probs, weights).sum(-1),
        )

    def nll_of_temperature(
        self,
        outputs: Tensor,
        covariance: Tensor,
        targets: Tensor,
        *,
        link: str,
        normals: Tensor,
        top: int | None = None,
    ) -> Callable[[float | Tensor], Tensor]:
        """Prepare the mean NLL of damped logits."""
        damped = outputs * damping_factor(covariance.diagonal(dim1=-2, dim2=-1))

        def nll(temperature: float | Tensor) -> Tensor:
            if isinstance(temperature, Tensor):
                temperature = temperature[..., None, None]
            return -self.log_prob(damped / temperature, targets).mean(-1)

        return nll

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
