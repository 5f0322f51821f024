"""One of C classes: Λ = diag(π) − ππᵀ, of rank C − 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log
from typing import ClassVar

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.information import mixture_information
from smidgen.outputs.likelihood.base import Likelihood
from smidgen.outputs.links import (
    at_temperatures,
    centre,
    directions,
    divide_mean,
    draws_at_temperatures,
    log_mean,
    pick_class,
    resolve_link,
    targets_at_temperatures,
)
from smidgen.outputs.predictive import CategoricalPredictive
from smidgen.outputs.top_classes import TopClasses

# Weight samples of more classes keep no covariance between every two of them.
_PAIRED_CLASSES = 64
_EXTREME = log(10.0)


def is_extreme(temperature: float) -> bool:
    """Whether a temperature is one that no well-sized validation set would ask for."""
    return abs(log(temperature)) > _EXTREME


@dataclass(frozen=True)
class Categorical(Likelihood):
    """One of C classes; targets are class numbers."""

    kind: ClassVar[str] = "categorical"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outputs < 2:
            raise ArgumentError(
                f"a categorical likelihood needs 2 outputs or more, got {self.outputs}. "
                "Use Bernoulli for one logit, Gaussian for regression."
            )

    def root_columns(self, logits: Tensor) -> Tensor:
        """Closed-form Cholesky factor of diag(π) − ππᵀ: C − 1 columns, (C−1, B, C)."""
        # With q_j = 1 − Σ_{k≤j} π_k: L_jj = √(π_j q_j / q_{j−1}) and, below it,
        # L_ij = −π_i √(π_j / (q_j q_{j−1})). For two classes: √(π₀π₁)·(1, −1).
        probs = logits.softmax(-1)
        # q_{j-1}: the mass of class j and all after it, summed from the small end.
        tail = probs.flip(-1).cumsum(-1).flip(-1)
        before, after = tail[:, :-1], tail[:, 1:]
        head = probs[:, :-1]
        tiny = torch.finfo(probs.dtype).tiny
        diagonal = (head * after / before.clamp_min(tiny)).sqrt()
        below = (head / (after * before).clamp_min(tiny)).sqrt()
        columns = (-probs[:, None, :] * below[:, :, None]).triu(1)  # (B, C−1, C)
        columns.diagonal(dim1=-2, dim2=-1).copy_(diagonal)
        return columns.transpose(0, 1)

    def draw_targets(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """Draw a class."""
        probs = logits.double().softmax(-1).cpu()
        drawn = torch.multinomial(probs, 1, generator=generator)
        return drawn.squeeze(-1).to(logits.device)

    def gradient(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Compute π − e_y."""
        chosen = torch.nn.functional.one_hot(targets, self.outputs)
        return logits.softmax(-1) - chosen

    def resolve_link(self, link: str, top: int | None = None) -> str:
        """Settle "auto" by the number of classes, or refuse."""
        return resolve_link(link, self.outputs, top)

    @property
    def root_count(self) -> int:
        """The rank of the Hessian, C − 1."""
        return self.outputs - 1

    def direction_count(self, link: str, top: int | None = None) -> int:
        """C for the diagonal probit, else one fewer than the classes that are followed."""
        return (top or self.outputs) - (link != "diagonal-probit")

    def directions(self, link: str) -> Tensor:
        """All logits for the diagonal probit, else the differences to class 0."""
        return directions(link, self.outputs)

    def choose_directions(
        self, link: str, top: int | None = None
    ) -> Callable[[Tensor], Tensor]:
        """With `top`, the differences of an example's likeliest classes: (m−1, B, C)."""
        if top is None:
            return super().choose_directions(link)
        return lambda outputs: TopClasses.of(outputs, top).directions(outputs)

    def predictive(
        self,
        outputs: Tensor,
        covariance: Tensor,
        *,
        link: str,
        temperature: float,
        normals: Tensor | None = None,
        top: int | None = None,
    ) -> CategoricalPredictive:
        """Class probabilities; the covariance becomes one of centred logits, (B, C, C)."""
        classes, information = None, None
        if top is not None:
            followed = TopClasses.of(outputs, top)
            at = followed.at_temperatures(outputs, covariance, normals=normals)
            log_probs, classes = at(temperature), followed.numbers
            information = followed.information(
                outputs, covariance, temperature, normals=normals
            )
        elif link == "sampling":
            contrasts = outputs[..., 1:] - outputs[..., :1]
            drawn = draws_at_temperatures(contrasts, covariance, normals)
            draws = drawn(temperature).log_softmax(-1)  # (B, S, C)
            log_probs, information = log_mean(draws), mixture_information(draws)
        else:
            log_probs = at_temperatures(link, outputs, covariance)(temperature)
        return CategoricalPredictive(
            log_probs,
            outputs,
            centre(covariance, top or self.outputs),
            temperature,
            classes,
            information,
        )

    def mixture(self, outputs: Tensor, temperature: float) -> CategoricalPredictive:
        """Mean class probabilities over samples (S, B, C)."""
        log_probs = divide_mean(outputs, temperature).log_softmax(-1).movedim(0, -2)
        count = len(outputs)
        covariance = None
        if self.outputs <= _PAIRED_CLASSES:
            deviations = outputs - outputs.mean(-1, keepdim=True)
            deviations = deviations - deviations.mean(0)
            covariance = torch.einsum("sbc,sbd->bcd", deviations, deviations) / (count - 1)
        return CategoricalPredictive(
            log_mean(log_probs),
            outputs.mean(0),
            covariance,
            temperature,
            information=mixture_information(log_probs),
        )

    def nll_of_temperature(
        self,
        outputs: Tensor,
        covariance: Tensor,
        targets: Tensor,
        *,
        link: str,
        normals: Tensor | None = None,
        top: int | None = None,
    ) -> Callable[[float | Tensor], Tensor]:
        """Prepare the mean NLL; what the temperature does not change is done once."""
        if top is None:
            log_probs = targets_at_temperatures(
                link, outputs, covariance, targets, normals=normals
            )
            return lambda temperature: -log_probs(temperature).mean(-1)
        followed = TopClasses.of(outputs, top)
        at = followed.at_temperatures(outputs, covariance, normals=normals)
        return lambda temperature: -pick_class(at(temperature), targets).mean(-1)

    def log_prob(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Log-softmax at the target class, (B,)."""
        return logits.log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1)

    def check_targets(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return class numbers (B,) as int64."""
        if targets.is_floating_point() or targets.shape != logits.shape[:1]:
            raise DataError(
                f"labels must be {len(logits)} class numbers, got {targets.dtype} of shape "
                f"{tuple(targets.shape)}. Pass Problem(model, likelihood=...) if they are "
                "not classes."
            )
        wrong = targets[(targets < 0) | (targets >= self.outputs)]
        if wrong.numel():
            raise DataError(
                f"labels must be in [0, {self.outputs}), got {int(wrong[0])}. The model "
                f"has {self.outputs} classes; renumber the labels."
            )
        return targets.long()
