"""`Likelihood`: what outputs mean, from targets to predictives.

For a likelihood with outputs f (B, C), the Hessian of -log p in f is Λ. Its square-root
columns are what a curvature pass back-propagates (DESIGN 4.2).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import log, pi
from typing import ClassVar

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DataError
from smidgen.links import at_temperatures, centred, damping, directions, resolve
from smidgen.predictive import (
    BernoulliPredictive,
    CategoricalPredictive,
    GaussianPredictive,
    Predictive,
)


@dataclass(frozen=True)
class Likelihood(ABC):
    """What the outputs of a model mean. `outputs` is C, the number of outputs."""

    outputs: int
    kind: ClassVar[str]

    @abstractmethod
    def root_columns(self, logits: Tensor) -> Tensor:
        """Square-root columns of the Hessian: (K, B, C) with Σ_k s_k s_kᵀ = Λ."""

    @abstractmethod
    def log_prob(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Log-probability of each target, (B,)."""

    @abstractmethod
    def checked_targets(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return targets in the form `log_prob` takes, or raise `DataError`."""

    @abstractmethod
    def predictive(
        self,
        outputs: Tensor,
        covariance: Tensor,
        *,
        link: str,
        temperature: float,
        normals: Tensor,
    ) -> Predictive:
        """Turn Gaussian outputs into a predictive.

        Args:
            outputs: Mean outputs, (B, C).
            covariance: Covariance of the directions, (B, K, K).
            link: A resolved link.
            temperature: Divides the mean of logits.
            normals: Standard normals (S, C−1) if the link samples.

        Returns:
            The predictive.
        """

    @abstractmethod
    def nll_of_temperature(
        self,
        outputs: Tensor,
        covariance: Tensor,
        targets: Tensor,
        *,
        link: str,
        normals: Tensor,
    ) -> Callable[[float | Tensor], Tensor]:
        """Prepare the mean NLL of a predictive as a function of its temperature."""

    @property
    def scale(self) -> float:
        """What the Hessian is divided by: the noise variance, 1 without noise."""
        return 1.0

    def resolved_link(self, link: str) -> str:
        """Settle "auto", or refuse a link that cannot serve."""
        return resolve(link, 2)

    def directions(self, link: str) -> Tensor:
        """Combinations of outputs, (K, C), whose covariance a resolved link needs."""
        return torch.eye(self.outputs, dtype=torch.float64)

    def check_outputs(self, logits: Tensor) -> None:
        """Refuse outputs that are not finite numbers of shape (B, C).

        Args:
            logits: The outputs.

        Raises:
            DataError: If they are not.
        """
        if logits.dim() != 2 or logits.shape[1] != self.outputs:
            raise DataError(
                f"outputs must have shape (batch, {self.outputs}), got "
                f"{tuple(logits.shape)}. Pass forward= that returns such outputs."
            )
        if not torch.isfinite(logits).all():
            raise DataError(
                "the model's outputs contain NaN or infinity. Check its weights and "
                "the inputs of this batch."
            )


@dataclass(frozen=True)
class Categorical(Likelihood):
    """One of C classes; targets are class numbers."""

    kind: ClassVar[str] = "categorical"

    def __post_init__(self) -> None:
        if self.outputs < 2:
            raise ArgumentError(
                f"a categorical likelihood needs 2 outputs or more, got {self.outputs}. "
                "Use Bernoulli for one logit, Gaussian for regression."
            )

    def root_columns(self, logits: Tensor) -> Tensor:
        """Closed-form Cholesky factor of diag(π) − ππᵀ: C − 1 columns, (C−1, B, C).

        With q_j = 1 − Σ_{k≤j} π_k: L_jj = √(π_j q_j / q_{j−1}) and, below it,
        L_ij = −π_i √(π_j / (q_j q_{j−1})). For two classes: √(π₀π₁)·(1, −1).

        Returns:
            The columns.
        """
        probs = logits.softmax(-1)
        # q_{j-1}: the mass of class j and all after it, summed from the small end.
        tail = probs.flip(-1).cumsum(-1).flip(-1)
        before, after = tail[:, :-1], tail[:, 1:]
        head = probs[:, :-1]
        tiny = torch.finfo(probs.dtype).tiny
        diagonal = (head * after / before.clamp_min(tiny)).sqrt()
        below = (head / (after * before).clamp_min(tiny)).sqrt()
        columns = -probs[:, None, :] * below[:, :, None]
        columns = columns.triu(1)
        columns.diagonal(dim1=-2, dim2=-1).copy_(diagonal)
        return columns.transpose(0, 1)

    def resolved_link(self, link: str) -> str:
        """Settle "auto" by the number of classes, or refuse."""
        return resolve(link, self.outputs)

    def directions(self, link: str) -> Tensor:
        """All logits for the diagonal probit, else the differences to class 0."""
        return directions(link, self.outputs)

    def predictive(
        self,
        outputs: Tensor,
        covariance: Tensor,
        *,
        link: str,
        temperature: float,
        normals: Tensor,
    ) -> CategoricalPredictive:
        """Class probabilities; the covariance becomes one of logits, (B, C, C)."""
        at = at_temperatures(link, outputs, covariance, normals=normals)
        if link != "diagonal-probit":
            covariance = centred(covariance)
        return CategoricalPredictive(at(temperature), outputs, covariance, temperature)

    def nll_of_temperature(
        self,
        outputs: Tensor,
        covariance: Tensor,
        targets: Tensor,
        *,
        link: str,
        normals: Tensor,
    ) -> Callable[[float | Tensor], Tensor]:
        """Prepare the mean NLL; what the temperature does not change is done once."""
        at = at_temperatures(link, outputs, covariance, normals=normals)
        return lambda temperature: -at(temperature).gather(-1, targets[:, None]).mean()

    def log_prob(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Log-softmax at the target class, (B,)."""
        return logits.log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1)

    def checked_targets(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return class numbers (B,) as int64.

        Args:
            logits: The outputs, (B, C).
            targets: The targets of the kept rows.

        Returns:
            The class numbers.

        Raises:
            DataError: If they are not class numbers of this model.
        """
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
                f"has {self.outputs} classes; map the labels to them."
            )
        return targets.long()


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """C independent yes/no labels, one logit each; targets are 0 or 1, (B, C)."""

    kind: ClassVar[str] = "bernoulli"

    def root_columns(self, logits: Tensor) -> Tensor:
        """One column per label, √(p(1 − p)): (C, B, C)."""
        root = (logits.sigmoid() * (-logits).sigmoid()).sqrt()
        return torch.diag_embed(root).transpose(0, 1)

    def predictive(
        self,
        outputs: Tensor,
        covariance: Tensor,
        *,
        link: str,
        temperature: float,
        normals: Tensor,
    ) -> BernoulliPredictive:
        """Probability of each label, by the probit."""
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        probs = (outputs / temperature * damping(variance)).sigmoid()
        return BernoulliPredictive(probs, outputs, variance, temperature)

    def nll_of_temperature(
        self,
        outputs: Tensor,
        covariance: Tensor,
        targets: Tensor,
        *,
        link: str,
        normals: Tensor,
    ) -> Callable[[float | Tensor], Tensor]:
        """Prepare the mean NLL of damped logits."""
        damped = outputs * damping(covariance.diagonal(dim1=-2, dim2=-1))
        return lambda temperature: -self.log_prob(damped / temperature, targets).mean()

    def log_prob(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Sum over labels of the log-probability, (B,)."""
        signs = 2 * targets - 1
        return torch.nn.functional.logsigmoid(signs * logits).sum(-1)

    def checked_targets(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return zeros and ones (B, C); for one label (B,) will do.

        Args:
            logits: The outputs, (B, C).
            targets: The targets of the kept rows.

        Returns:
            The labels, in the logits' type.

        Raises:
            DataError: If they are anything else.
        """
        targets = _one_row_each(targets, logits)
        if not ((targets == 0) | (targets == 1)).all():
            raise DataError(
                f"labels must be 0 or 1 of shape {tuple(logits.shape)}, got "
                f"{targets.flatten().tolist()[:4]}…. Pass another likelihood."
            )
        return targets.to(logits.dtype)


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
        targets = _one_row_each(targets, logits)
        if not torch.isfinite(targets).all():
            raise DataError(
                "targets must be finite numbers, got NaN or infinity. Leave those rows out."
            )
        return targets.to(logits.dtype)


def _one_row_each(targets: Tensor, logits: Tensor) -> Tensor:
    if targets.shape == logits.shape[:1] and logits.shape[1] == 1:
        targets = targets[:, None]
    if targets.shape != logits.shape:
        raise DataError(
            f"targets must have shape {tuple(logits.shape)}, as the outputs, got "
            f"{tuple(targets.shape)}."
        )
    return targets


KINDS: dict[str, type[Likelihood]] = {
    each.kind: each for each in (Categorical, Bernoulli, Gaussian)
}
