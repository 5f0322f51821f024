"""Further arguments of a plan, and which of them suit a method."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from smidgen.errors import ArgumentError


@dataclass(frozen=True)
class PlanSettings:
    """Further arguments of `plan`.

    Args:
        fisher_draws: Labels that `fit.laplace` is to draw for each output, or "exact"; by
            default as many as it draws by default.
        top: How many classes of each example calibration and `predict` are to follow, or
            "all"; by default as many as they follow by default.
        rank: Deviations that SWAG keeps.
        steps: Steps that SWAG takes, to estimate the time for.
        batch_size: Texts in a batch of tokens, where no batch is given.
        max_length: Tokens of each text.
        isotropic_body: Whether every layer of which the subset has nothing is to join,
            without curvature.
    """

    fisher_draws: int | Literal["exact"] | None = None
    top: int | Literal["all"] | None = None
    rank: int = 20
    steps: int = 2000
    batch_size: int = 16
    max_length: int = 128
    isotropic_body: bool = False

    def check(self, method: str) -> None:
        """Refuse values that are out of range or meant for another method."""
        least = {"rank": 2, "top": 2}
        for name, number in asdict(self).items():
            words = {"fisher_draws": ("exact",), "top": ("all",)}
            if isinstance(number, bool) or number in words.get(name, ()):
                continue
            if number is not None and number < least.get(name, 1):
                raise ArgumentError(
                    f"{name} must be {least.get(name, 1)} or more, got {number}."
                )
        own = ("fisher_draws", "top", "isotropic_body")
        for name, value in ((name, getattr(self, name)) for name in own):
            if method != "laplace" and value not in (None, False):
                raise ArgumentError(
                    f"{name} is for method 'laplace', got {value} with {method!r}. Leave it "
                    "out."
                )
