"""What every likelihood can tell about outputs f (B, C).

The Hessian of −log p in f is Λ; its square-root columns are what a curvature pass
back-propagates (DESIGN 4.2).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Self

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DataError, is_whole
from smidgen.outputs.predictive import Predictive

IGNORED = -100
"""The label of rows without a target, as Hugging Face has it."""


@dataclass(frozen=True)
class Likelihood(ABC):
    """What the outputs of a model mean. `outputs` is C, the number of outputs."""

    outputs: int
    kind: ClassVar[str]
    links: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        if not is_whole(self.outputs) or self.outputs < 1:
            raise ArgumentError(
                f"outputs must be a whole number, 1 or more, got {self.outputs!r}. It is how "
                "many numbers the model returns for an example."
            )

    @abstractmethod
    def root_columns(self, logits: Tensor) -> Tensor:
        """Square-root columns of the Hessian: (K, B, C) with Σ_k s_k s_kᵀ = Λ."""

    def fit_noise(self, squared_residual: float) -> Self:
        """Fit the noise to the training residuals; only a regression has any."""
        return self

    @abstractmethod
    def draw_targets(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """Draw one target for each row from p(y | f), on the CPU's generator."""

    @abstractmethod
    def gradient(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Gradient of −log p(y | f) in f, (B, C), for unit noise."""

    @abstractmethod
    def log_prob(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Log-probability of each target, (B,)."""

    @abstractmethod
    def check_targets(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return targets in the form `log_prob` takes, or raise `DataError`."""

    @abstractmethod
    def predictive(
        self,
        outputs: Tensor,
        covariance: Tensor,
        *,
        link: str,
        temperature: float,
        normals: Tensor | None = None,
        top: int | None = None,
    ) -> Predictive:
        """Turn Gaussian outputs (B, C) into a predictive."""
        # covariance: of the link's directions, (B, K, K). normals: (S, K), if the link samples.
        # top: how many classes of each example are followed; None for all.

    @abstractmethod
    def mixture(self, outputs: Tensor, temperature: float) -> Predictive:
        """Turn outputs (S, B, C) of S weight samples into the predictive of their mixture."""

    @abstractmethod
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
        """Prepare the mean NLL of a predictive as a function of its temperature."""

    @property
    def scale(self) -> float:
        """What the Hessian is divided by: the noise variance, 1 without noise."""
        return 1.0

    def resolve_link(self, link: str, top: int | None = None) -> str:
        """Settle "auto", or refuse a link or `top` that these outputs do not have."""
        if top is not None:
            raise ArgumentError(
                f"top is for outputs that are classes, and these are {self.kind}, got "
                f"{top!r}. Leave it out."
            )
        if link not in ("auto", *self.links):
            allowed = " or ".join(map(repr, ("auto", *self.links)))
            raise ArgumentError(
                f"link must be {allowed} for {self.kind} outputs, got {link!r}. Leave it "
                "out."
            )
        return self.links[0] if link == "auto" and self.links else link

    @property
    def root_count(self) -> int:
        """How many square-root columns the Hessian has."""
        return self.outputs

    def direction_count(self, link: str, top: int | None = None) -> int:
        """How many directions a resolved link needs."""
        return self.outputs

    def directions(self, link: str) -> Tensor:
        """Combinations of outputs, (K, C), whose covariance a resolved link needs."""
        return torch.eye(self.outputs, dtype=torch.float64)

    def choose_directions(
        self, link: str, top: int | None = None
    ) -> Callable[[Tensor], Tensor]:
        """The same directions for each row of outputs: from (B, C) to (K, B, C)."""
        # Made when the outputs are there and were checked: a forged width may be of any size.
        make = cache(lambda: self.directions(link))
        return lambda outputs: make().to(outputs)[:, None].expand(-1, len(outputs), -1)

    def check_outputs(self, logits: Tensor) -> None:
        """Refuse outputs that are not finite numbers of shape (B, C)."""
        if logits.dim() != 2 or logits.shape[1] != self.outputs:
            raise DataError(
                f"outputs must have shape (batch, {self.outputs}), got "
                f"{tuple(logits.shape)}. Pass forward= that returns such outputs."
            )
        require_finite_outputs(logits)


def require_finite_outputs(outputs: Tensor) -> None:
    """Refuse outputs of which one is NaN or infinite."""
    if not torch.isfinite(outputs).all():
        raise DataError(
            "the model's outputs contain NaN or infinity. Check its weights and "
            "the inputs of this batch."
        )


def flatten_targets(targets: Tensor, logits: Tensor) -> Tensor:
    """Shape targets like the outputs (B, C); a vector will do for one output."""
    if targets.shape == logits.shape[:1] and logits.shape[1] == 1:
        targets = targets[:, None]
    if targets.shape != logits.shape:
        raise DataError(
            f"targets must have shape {tuple(logits.shape)}, as the outputs, got "
            f"{tuple(targets.shape)}."
        )
    return targets


def has_target(targets: Tensor) -> Tensor:
    """Find the rows (R,) of targets (R, ...) that have one; −100 marks whole numbers only."""
    # The one rule that fitting, calibration and scores share.
    # torch would take an unsigned 156 for −100.
    if targets.is_floating_point() or not targets.dtype.is_signed:
        return torch.ones(len(targets), dtype=torch.bool, device=targets.device)
    # One more axis, so that a vector has one to reduce.
    return (targets != IGNORED).unsqueeze(-1).flatten(1).any(-1)
