"""`Predictive`: what a posterior says about each example of a batch.

Shapes: B examples, C classes, labels or outputs. `logits` are the mean outputs, of the
linearised model or of weight samples, before the temperature divides them. How they vary,
their covariance, it leaves alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import e, pi
from statistics import NormalDist
from typing import ClassVar, Self

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, is_number
from smidgen.outputs.information import entropy_of, mixture_information
from smidgen.outputs.links import (
    GaussianLogit,
    between,
    both_outcomes,
    draws_at_temperatures,
)
from smidgen.runtime.showing.html import ShownInNotebook


@dataclass(frozen=True, eq=False)
class Predictive(ShownInNotebook, ABC):
    """Predictions for B examples, on the CPU."""

    kind: ClassVar[str]

    @property
    @abstractmethod
    def entropy(self) -> Tensor:
        """Total uncertainty in nats, (B,)."""

    @property
    @abstractmethod
    def mutual_information(self) -> Tensor | None:
        """Uncertainty that comes from the weights, in nats, (B,), where defined."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def to_dict(self) -> dict[str, list[object]]:
        """List plain numbers, one entry per example, ready for JSON."""

    def take(self, rows: Tensor | Sequence[int]) -> Self:
        """Take some of the examples, as `take(targets != -100)` does.

        Args:
            rows: True for each example to take, (B,), or the numbers of those to take.

        Returns:
            Their predictive, in that order.

        Raises:
            ArgumentError: If there are no such rows.
        """
        chosen = torch.as_tensor(rows).cpu()
        if chosen.dim() != 1 or chosen.is_floating_point():
            raise ArgumentError(
                "rows must be a vector of booleans or of whole numbers, got "
                f"{chosen.dtype} of shape {tuple(chosen.shape)}. Pass "
                "targets.flatten() != -100."
            )
        if chosen.dtype == torch.bool and len(chosen) != len(self):
            raise ArgumentError(
                f"rows must have a boolean for each of {len(self)} examples, got "
                f"{len(chosen)}. Pass one for each."
            )
        if chosen.dtype == torch.bool:
            chosen = chosen.nonzero().squeeze(-1)
        wrong = chosen[(chosen < 0) | (chosen >= len(self))]
        if len(wrong):
            raise ArgumentError(
                f"rows must be in [0, {len(self)}), got {int(wrong[0])}. Count from 0."
            )
        chosen = chosen.long()
        return self._map_tensors(lambda _, value: value[chosen])

    def _map_tensors(self, change: Callable[[str, Tensor], Tensor]) -> Self:
        """Make another whose tensors are those of `change(name, tensor)`."""
        return type(self)(
            **{
                name: change(name, value) if isinstance(value, Tensor) else value
                for name, value in vars(self).items()
            }
        )


class ClassPredictive(Predictive):
    """One of C classes for each example, whether all of their probabilities are kept or not."""

    @property
    @abstractmethod
    def class_count(self) -> int:
        """How many classes there are."""

    @property
    @abstractmethod
    def known_log_probs(self) -> Tensor:
        """The log-probabilities that were kept, (B, ...)."""

    @property
    @abstractmethod
    def predicted(self) -> Tensor:
        """The likeliest class, (B,)."""

    @property
    @abstractmethod
    def confidence(self) -> Tensor:
        """Probability of the likeliest class, (B,)."""

    @abstractmethod
    def log_prob_of(self, targets: Tensor) -> Tensor:
        """Log-probability of a class of each example, (B,)."""

    @abstractmethod
    def squared_error_of(self, targets: Tensor) -> Tensor:
        """Σ (p − truth)² over classes, (B,)."""


@dataclass(frozen=True, eq=False)
class CategoricalPredictive(ClassPredictive):
    """Class probabilities.

    `logit_covariance` is that of the *centred* logits, (B, C, C), whatever the link: a
    softmax sees only differences of logits, and it gives every difference its variance. If
    only the likeliest classes were followed, `classes` (B, m) are their numbers, the
    likeliest first, and the covariance is (B, m, m), of their logits centred among them;
    the remaining classes keep their distance to the likeliest. `information` (B,) is the
    mutual information of the draws that made the probabilities, where draws did.
    """

    log_probs: Tensor
    logits: Tensor
    logit_covariance: Tensor | None = None
    temperature: float = 1.0
    classes: Tensor | None = None
    information: Tensor | None = None
    kind: ClassVar[str] = "categorical"

    def __repr__(self) -> str:
        count, classes = self.log_probs.shape
        return f"CategoricalPredictive({count} examples, {classes} classes)"

    @classmethod
    def from_logits(cls, logits: Tensor, temperature: float = 1.0) -> CategoricalPredictive:
        """Wrap the point prediction softmax(logits / temperature)."""
        logits = logits.detach().double().cpu()
        log_probs = (logits / temperature).log_softmax(-1)
        return cls(log_probs, logits, None, temperature)

    @property
    def probs(self) -> Tensor:
        """Class probabilities, (B, C)."""
        return self.log_probs.exp()

    @property
    def class_count(self) -> int:
        """How many classes there are."""
        return self.log_probs.shape[1]

    @property
    def known_log_probs(self) -> Tensor:
        """All log-probabilities, (B, C)."""
        return self.log_probs

    @property
    def predicted(self) -> Tensor:
        """The likeliest class, (B,)."""
        return self.log_probs.argmax(-1)

    @property
    def confidence(self) -> Tensor:
        """Probability of the likeliest class, (B,)."""
        return self.probs.max(-1).values

    @property
    def entropy(self) -> Tensor:
        """Entropy of the class probabilities in nats, (B,)."""
        return entropy_of(self.log_probs)

    @property
    def logit_variance(self) -> Tensor | None:
        """Variance of each centred logit, (B, C), or (B, m) of the classes followed."""
        if self.logit_covariance is None:
            return None
        return self.logit_covariance.diagonal(dim1=1, dim2=2)

    @property
    def mutual_information(self) -> Tensor | None:
        """H[E p] − E H[p], at most the entropy, (B,); None for a point prediction."""
        information = self.information
        if information is None and self.logit_covariance is not None:
            information = self._gaussian_information(self.logit_covariance)
        # The link may be an approximation with less entropy than the Gaussian it is of.
        return None if information is None else information.minimum(self.entropy)

    def log_prob_of(self, targets: Tensor) -> Tensor:
        """Log-probability of a class of each example, (B,)."""
        return self.log_probs.double().gather(-1, targets[:, None]).squeeze(-1)

    def squared_error_of(self, targets: Tensor) -> Tensor:
        """Σ (p − truth)² over classes, (B,)."""
        truth = torch.nn.functional.one_hot(targets, self.class_count)
        return (self.probs.double() - truth).square().sum(-1)

    def _gaussian_information(self, covariance: Tensor) -> Tensor:
        """H[E p] − E H[p] under Gaussian logits: exact for two classes, else by draws."""
        contrasts, variances = self.logits[:, 1:] - self.logits[:, :1], between(covariance)
        if contrasts.shape[1] == 1:
            logit = GaussianLogit.of(variances[:, 0, 0])
            return logit.information(contrasts[:, 0] / self.temperature)
        drawn = draws_at_temperatures(contrasts, variances, None)(self.temperature)
        return mixture_information(drawn.log_softmax(-1))

    def __len__(self) -> int:
        return len(self.log_probs)

    def to_dict(self) -> dict[str, list[object]]:
        """List probabilities, class, confidence, entropy and information."""
        listed = {
            "probs": self.probs,
            "predicted": self.predicted,
            "confidence": self.confidence,
            "logits": self.logits,
            "entropy": self.entropy,
        }
        if self.classes is not None:
            listed["classes"] = self.classes
        if self.logit_variance is not None:
            listed["logit_variance"] = self.logit_variance
        return list_rows(listed, self.mutual_information)


@dataclass(frozen=True, eq=False)
class BernoulliPredictive(Predictive):
    """Probabilities of C independent labels.

    `log_probs` are those of no and yes, (B, C, 2), so that neither is lost where the other
    is certain. `logit_variance` (B, C) is that of each label's one logit. `information`
    (B,) is the mutual information of draws, where draws made the probabilities.
    """

    log_probs: Tensor
    logits: Tensor
    logit_variance: Tensor | None = None
    temperature: float = 1.0
    information: Tensor | None = None
    kind: ClassVar[str] = "bernoulli"

    def __repr__(self) -> str:
        count, labels = self.logits.shape
        return f"BernoulliPredictive({count} examples, {labels} labels)"

    @classmethod
    def from_logits(cls, logits: Tensor, temperature: float = 1.0) -> BernoulliPredictive:
        """Wrap the point prediction σ(logits / temperature)."""
        logits = logits.detach().double().cpu()
        log_probs = both_outcomes(torch.nn.functional.logsigmoid, logits / temperature)
        return cls(log_probs, logits, None, temperature)

    @property
    def probs(self) -> Tensor:
        """Probability of each label, (B, C)."""
        return self.log_probs[..., 1].exp()

    @property
    def entropy(self) -> Tensor:
        """Sum over labels of the entropy in nats, (B,)."""
        return entropy_of(self.log_probs).sum(-1)

    @property
    def mutual_information(self) -> Tensor | None:
        """Sum over labels of H[E p] − E H[p]; None for a point prediction."""
        information = self.information
        if information is None and self.logit_variance is not None:
            logit = GaussianLogit.of(self.logit_variance)
            information = logit.information(self.logits / self.temperature).sum(-1)
        return None if information is None else information.minimum(self.entropy)

    def __len__(self) -> int:
        return len(self.log_probs)

    def to_dict(self) -> dict[str, list[object]]:
        """List probabilities, entropy and information."""
        listed = {"probs": self.probs, "logits": self.logits, "entropy": self.entropy}
        if self.logit_variance is not None:
            listed["logit_variance"] = self.logit_variance
        return list_rows(listed, self.mutual_information)


@dataclass(frozen=True, eq=False)
class GaussianPredictive(Predictive):
    """A normal distribution for each output: `variance` is of the function, (B, C).

    `noise` is the variance of an observation around the function, (B, C).
    """

    mean: Tensor
    variance: Tensor
    noise: Tensor
    kind: ClassVar[str] = "gaussian"

    def __repr__(self) -> str:
        count, outputs = self.mean.shape
        return f"GaussianPredictive({count} examples, {outputs} outputs)"

    @property
    def total_variance(self) -> Tensor:
        """Variance of a new observation: of the function plus the noise."""
        return self.variance + self.noise

    def central_interval(self, coverage: float = 0.95) -> tuple[Tensor, Tensor]:
        """Find the middle part of each normal distribution, its noise included.

        Args:
            coverage: The probability of each interval, in (0, 1).

        Returns:
            The lower and the upper ends, (B, C) each, in float64.

        Raises:
            ArgumentError: If coverage is out of its range.
        """
        if not is_number(coverage) or not 0 < coverage < 1:
            raise ArgumentError(
                f"coverage must be above 0 and below 1, got {coverage!r}. Try 0.95."
            )
        deviations = NormalDist().inv_cdf((1 + coverage) / 2)
        half = deviations * self.total_variance.double().sqrt()
        return self.mean.double() - half, self.mean.double() + half

    @property
    def entropy(self) -> Tensor:
        """Differential entropy of the outputs in nats, (B,)."""
        return 0.5 * (2 * pi * e * self.total_variance).log().sum(-1)

    @property
    def mutual_information(self) -> Tensor:
        """½ Σ log(1 + variance / noise), (B,)."""
        return 0.5 * (self.variance / self.noise).log1p().sum(-1)

    def __len__(self) -> int:
        return len(self.mean)

    def to_dict(self) -> dict[str, list[object]]:
        """List mean, variances, entropy and information."""
        listed = {
            "mean": self.mean,
            "variance": self.variance,
            "total_variance": self.total_variance,
            "entropy": self.entropy,
        }
        return list_rows(listed, self.mutual_information)


def concatenate(predictives: Sequence[Predictive]) -> Predictive:
    """Join predictives of one kind, batch after batch."""
    return predictives[0]._map_tensors(
        lambda name, _: torch.cat([getattr(part, name) for part in predictives])
    )


def list_rows(
    tensors: dict[str, Tensor], information: Tensor | None
) -> dict[str, list[object]]:
    """List tensors by name, and the mutual information where it is defined."""
    if information is not None:
        tensors = {**tensors, "mutual_information": information}
    return {name: tensor.tolist() for name, tensor in tensors.items()}
