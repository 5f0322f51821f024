"""What every likelihood can tell about outputs f (B, C).

The Hessian of −log p in f is Λ; its square-root columns are what a curvature pass
back-propagates (DESIGN 4.2).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DataError, ResourceError, is_whole
from smidgen.outputs.links import Keep, Link
from smidgen.outputs.predictive import Predictive
from smidgen.outputs.temperature_curve import NllCurve
from smidgen.runtime.memory import available_bytes, format_bytes

# Bytes that any machine has.
_NEVER_REFUSED = 2**26

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
        keep: Keep = "all",
    ) -> Predictive:
        """Turn Gaussian outputs (B, C) into a predictive."""
        # covariance: of the link's directions, (B, K, K). normals: (S, K), if the link samples.
        # top: how many classes of each example are followed; None for all. keep: whose
        # probabilities the predictive has.

    @abstractmethod
    def mixture(self, outputs: Tensor, temperature: float) -> Predictive:
        """Turn outputs (S, B, C) of S weight samples into the predictive of their mixture."""

    @abstractmethod
    def nll_curves(
        self,
        outputs: Tensor,
        targets: Tensor,
        *,
        link: str,
        normals: Tensor | None = None,
        top: int | None = None,
    ) -> Callable[[Tensor], NllCurve]:
        """Prepare the mean NLL of a predictive as a function of its temperature."""
        # From a covariance of the link's directions, (..., B, K, K), to the curve. What no
        # covariance changes is done once.

    @property
    def scale(self) -> float:
        """What the Hessian is divided by: the noise variance, 1 without noise."""
        return 1.0

    def resolve_link(self, link: str, top: int | str | None = None) -> str:
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

    def settle_link(self, link: Link, *, tell: bool = False) -> Link:
        """Settle what a link leaves open: which it is, and how many classes it follows."""
        # Everyone who needs a link gets it here, so that all mean the same by the same words.
        # `tell` says what was chosen where the user might expect something else.
        name = self.resolve_link(link.name, link.top)
        if link.keep == "followed":
            raise ArgumentError(
                f"keep must be 'auto' or 'all' for {self.kind} outputs, got 'followed'. Leave "
                "it out."
            )
        return replace(link, name=name, keep="all")

    def settle_draws(
        self, draws: int | Literal["exact"] | None, *, tell: bool = False
    ) -> int | None:
        """Settle how many labels a fit draws for each output; None for the exact Hessian."""
        if isinstance(draws, str) and draws != "exact":
            raise ArgumentError(
                f"fisher_draws must be a whole number or 'exact', got {draws!r}. Leave it "
                "out for the usual number."
            )
        return None if isinstance(draws, str) else draws

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

        def choose(outputs: Tensor) -> Tensor:
            require_room(self.direction_count(link), outputs, "Link(top=10)")
            return make().to(outputs)[:, None].expand(-1, len(outputs), -1)

        return choose

    def check_outputs(self, logits: Tensor) -> None:
        """Refuse outputs that are not finite numbers of shape (B, C)."""
        if logits.dim() != 2 or logits.shape[1] != self.outputs:
            raise DataError(
                f"outputs must have shape (batch, {self.outputs}), got "
                f"{tuple(logits.shape)}. Pass forward= that returns such outputs."
            )
        require_finite_outputs(logits)


def require_room(count: int, outputs: Tensor, advice: str) -> None:
    """Refuse so many combinations of outputs (B, C), for each row, if no memory holds them."""
    rows, classes = outputs.shape
    needed = 2 * count * outputs.numel() * outputs.itemsize
    # To ask the system takes as long as a small network's pass.
    if needed <= _NEVER_REFUSED:
        return
    available = available_bytes(outputs.device)
    if available is not None and needed > available:
        raise ResourceError(
            f"all of {classes:,} outputs at once need {format_bytes(needed)} of memory for "
            f"{rows:,} rows, and {format_bytes(available)} are available. Use {advice}, or "
            "smaller batches."
        )


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
