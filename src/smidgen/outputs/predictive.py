"""`Predictive`: what a posterior says about each example of a batch.

Shapes: B examples, C classes, labels or outputs. `logits` are the mean outputs, of the
linearised model or of weight samples; the predictive divides them by `temperature`, but not their
covariance.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import e, pi, sqrt
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from smidgen.errors import ArgumentError
from smidgen.outputs.links import noise_draws, standard_normals, with_first_class
from smidgen.outputs.top_classes import TopClasses

_NODES = 32
_DRAWS = 512


@dataclass(frozen=True, eq=False)
class Predictive(ABC):
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


@dataclass(frozen=True, eq=False)
class CategoricalPredictive(Predictive):
    """Class probabilities.

    `logit_covariance` is (B, C, C). Links that need only differences of logits store
    the covariance of the *centred* logits, which gives every difference its variance.
    If only the likeliest classes were followed, `classes` (B, m) are their numbers, the
    likeliest first, and the covariance is (B, m, m), of their logits centred among them;
    the remaining classes keep their distance to the likeliest. `information` (B,) is the
    mutual information where it was not computed from the covariance.
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
        return _entropy(self.log_probs)

    @property
    def mutual_information(self) -> Tensor | None:
        """H[E p] − E H[p] under the Gaussian logits; None for a point prediction."""
        if self.logit_covariance is None or self.information is not None:
            return self.information
        covariance = self.logit_covariance
        # Of the differences to the first class: (B, C−1, C−1).
        between = covariance[:, 1:, 1:] + covariance[:, :1, :1]
        between = between - covariance[:, 1:, :1] - covariance[:, :1, 1:]
        logits, rest = self.logits / self.temperature, None
        if self.classes is None:
            means = logits[:, 1:] - logits[:, :1]
        else:
            # Among the remaining classes nothing is uncertain: they count as one.
            means, remaining = TopClasses(self.classes).grouped(logits)
            rest = remaining.logsumexp(-1)
        nodes, weights = _nodes(means.shape[1])
        return _information(means, between, nodes, weights, rest)

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
        if self.logit_covariance is not None:
            listed["logit_variance"] = self.logit_covariance.diagonal(dim1=1, dim2=2)
        return _list_rows(listed, self.mutual_information)


@dataclass(frozen=True, eq=False)
class BernoulliPredictive(Predictive):
    """Probabilities of C independent labels; `logit_variance` is (B, C).

    `information` (B,) is the mutual information where it was not computed from that.
    """

    probs: Tensor
    logits: Tensor
    logit_variance: Tensor | None = None
    temperature: float = 1.0
    information: Tensor | None = None
    kind: ClassVar[str] = "bernoulli"

    @property
    def entropy(self) -> Tensor:
        """Sum over labels of the entropy in nats, (B,)."""
        both = torch.stack([self.probs, 1 - self.probs], -1)
        return _entropy(both.log()).sum(-1)

    @property
    def mutual_information(self) -> Tensor | None:
        """Sum over labels of H[E p] − E H[p]; None for a point prediction."""
        if self.logit_variance is None or self.information is not None:
            return self.information
        nodes, weights = _nodes(1)
        means = (self.logits / self.temperature)[..., None]
        variance = self.logit_variance[..., None, None]
        return _information(means, variance, nodes, weights).sum(-1)

    def __len__(self) -> int:
        return len(self.probs)

    def to_dict(self) -> dict[str, list[object]]:
        """List probabilities, entropy and information."""
        listed = {"probs": self.probs, "logits": self.logits, "entropy": self.entropy}
        if self.logit_variance is not None:
            listed["logit_variance"] = self.logit_variance
        return _list_rows(listed, self.mutual_information)


@dataclass(frozen=True, eq=False)
class GaussianPredictive(Predictive):
    """A normal distribution for each output: `variance` is of the function, (B, C).

    `noise` is the variance of an observation around the function, (B, C).
    """

    mean: Tensor
    variance: Tensor
    noise: Tensor
    kind: ClassVar[str] = "gaussian"

    @property
    def total_variance(self) -> Tensor:
        """Variance of a new observation: of the function plus the noise."""
        return self.variance + self.noise

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
        return _list_rows(listed, self.mutual_information)


def concatenate(predictives: Sequence[Predictive]) -> Predictive:
    """Join predictives of one kind, batch after batch."""
    return predictives[0]._map_tensors(
        lambda name, _: torch.cat([getattr(part, name) for part in predictives])
    )


def _entropy(log_probs: Tensor) -> Tensor:
    return torch.special.entr(log_probs.exp()).sum(-1)


def mixture_information(log_probs: Tensor, weights: Tensor) -> Tensor:
    """H[E p] − E H[p] of S weighted distributions (..., S, C) with weights (S,)."""
    mean = (weights[:, None] * log_probs.exp()).sum(-2)
    expected = (weights * _entropy(log_probs)).sum(-1)
    return (torch.special.entr(mean).sum(-1) - expected).clamp_min(0)


def _information(
    contrasts: Tensor,
    covariance: Tensor,
    nodes: Tensor,
    weights: Tensor,
    rest: Tensor | None = None,
) -> Tensor:
    """H[E p] − E H[p] for Gaussian differences to a class, at weighted nodes (S, K)."""
    # Logits of K + 1 classes at each node: (..., S, K+1).
    drawn = with_first_class(contrasts[..., None, :] + noise_draws(covariance, nodes))
    if rest is not None:  # the difference of one more class, which is not random
        fixed = rest[..., None, None].expand(*drawn.shape[:-1], 1)
        drawn = torch.cat([drawn, fixed], -1)
    return mixture_information(drawn.log_softmax(-1), weights)


def _nodes(dimensions: int) -> tuple[Tensor, Tensor]:
    """Nodes (S, K) and weights (S,) of a K-dimensional standard normal."""
    if dimensions == 1:
        points, weights = np.polynomial.hermite.hermgauss(_NODES)
        nodes = torch.from_numpy(points)[:, None] * sqrt(2)
        return nodes, torch.from_numpy(weights) / sqrt(pi)
    normals = standard_normals(_DRAWS, dimensions)
    return normals, torch.full((_DRAWS,), 1 / _DRAWS, dtype=torch.float64)


def _list_rows(
    tensors: dict[str, Tensor], information: Tensor | None
) -> dict[str, list[object]]:
    if information is not None:
        tensors = {**tensors, "mutual_information": information}
    return {name: tensor.tolist() for name, tensor in tensors.items()}
