"""One of C classes: Λ = diag(π) − ππᵀ, of rank C − 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import log
from typing import ClassVar, Literal

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DataError, warn
from smidgen.outputs.information import mixture_information
from smidgen.outputs.likelihood.base import Likelihood, require_room
from smidgen.outputs.links import (
    DRAWS,
    EXACT_CLASSES,
    FOLLOWED,
    KEPT_CLASSES,
    Keep,
    Link,
    at_temperatures,
    centre,
    directions,
    divide_mean,
    draws_at_temperatures,
    log_mean,
    resolve_link,
    standard_normals,
    targets_at_temperatures,
)
from smidgen.outputs.predictive import CategoricalPredictive, ClassPredictive
from smidgen.outputs.temperature_curve import NllCurve, TargetDraws, means_of_all
from smidgen.outputs.top_classes import TopClasses

# Weight samples of more classes keep no covariance between every two of them.
_PAIRED_CLASSES = 64
FISHER_DRAWS = 4
"""How many labels a fit draws for each output of more classes than `EXACT_CLASSES`: with 60
classes and 3,000 examples, variances were within 2 % of the exact curvature's (median)."""
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
        require_room(self.root_count, logits, "LaplaceSettings(fisher_draws=4)")
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

    def resolve_link(self, link: str, top: int | str | None = None) -> str:
        """Settle "auto" by the number of classes, or refuse."""
        return resolve_link(link, self.outputs, top)

    def settle_link(self, link: Link, *, tell: bool = False) -> Link:
        """Settle the link; of many classes the likeliest are followed, if none are asked for."""
        name, top = self.resolve_link(link.name, link.top), link.top
        if top is None:
            # Where another link was asked for by name, it has all classes.
            few = self.outputs <= EXACT_CLASSES or name != "sampling"
            top = "all" if few else FOLLOWED
        if tell and link.top != top != "all":
            warn(
                f"of {self.outputs:,} classes the {FOLLOWED} likeliest of each example get a "
                "covariance, and the others keep their distance to the likeliest. "
                "Link(top='all') follows all."
            )
        if link.keep == "followed" and top == "all":
            raise ArgumentError(
                "keep must be 'auto' or 'all' where every class is followed, got 'followed'. "
                f"Pass Link(top={FOLLOWED}, keep='followed')."
            )
        many = top != "all" and self.outputs > KEPT_CLASSES
        usual: Keep = "followed" if many else "all"
        keep = usual if link.keep == "auto" else link.keep
        return replace(link, name=name, top=top, keep=keep)

    def settle_draws(
        self, draws: int | Literal["exact"] | None, *, tell: bool = False
    ) -> int | None:
        """Settle the draws of a fit; of many classes, if nothing is asked for, a few."""
        if draws is not None or self.outputs <= EXACT_CLASSES:
            return super().settle_draws(draws)
        if tell:
            warn(
                f"the curvature of {self.outputs:,} classes is that of {FISHER_DRAWS} drawn "
                "labels an example. LaplaceSettings(fisher_draws='exact') takes all classes."
            )
        return FISHER_DRAWS

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
        keep: Keep = "all",
    ) -> ClassPredictive:
        """Class probabilities; the covariance becomes one of centred logits, (B, C, C)."""
        classes, information = None, None
        if top is not None and keep == "followed":
            followed = TopClasses.of(outputs, top)
            return followed.predictive(outputs, covariance, temperature, normals=normals)
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

    def nll_curves(
        self,
        outputs: Tensor,
        targets: Tensor,
        *,
        link: str,
        normals: Tensor | None = None,
        top: int | None = None,
    ) -> Callable[[Tensor], NllCurve]:
        """Prepare the mean NLL; of many classes all that the likeliest leave is summed once."""
        if link != "sampling":
            at = partial(targets_at_temperatures, link, outputs, targets)
            return lambda covariance: _mean_nll(at(covariance))
        places, means = targets, means_of_all(outputs, targets)
        if top is not None:
            places, means = TopClasses.of(outputs, top).means_for(outputs, targets)
        if normals is None:
            normals = standard_normals(DRAWS, (top or self.outputs) - 1)
        draws = partial(TargetDraws, normals, places, means)
        return lambda covariance: draws(covariance).curve

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


def _mean_nll(log_probs: Callable[[float | Tensor], Tensor]) -> NllCurve:
    return NllCurve(lambda temperature: -log_probs(temperature).mean(-1))
