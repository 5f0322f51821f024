"""What `bayesify` tries, and how much that may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from smidgen.errors import ArgumentError, is_number, is_whole

CandidateKind = Literal[
    "temperature", "last-layer", "isotropic", "head-isotropic", "sparse-kfac"
]
"""Temperature scaling; the last layer; all layers without curvature; the last layer with all
others without curvature; a part of every layer, and the last layer whole. In the order of
what a prediction costs, and then of what is stored."""
CANDIDATE_KINDS: tuple[CandidateKind, ...] = get_args(CandidateKind)
LEAST_ROWS = 10
"""How many held-out rows a fold has at least."""


@dataclass(frozen=True)
class BayesifySettings:
    """What to try, and what it may cost.

    Args:
        candidates: What to try, of "temperature", "last-layer", "isotropic",
            "head-isotropic" and "sparse-kfac"; temperature scaling always is.
        percents: The sizes of Sparse-KFAC, in percent of rows and columns.
        folds: In how many folds the held-out rows are scored, 2 or more; fewer if a fold
            would have less than ten rows.
        memory: The most bytes that a posterior may take; others are left out.
        seconds: About how long it may take, by the time of a first batch. What would take
            longer is left out.

    Raises:
        ArgumentError: If one of them is not what it may be.
    """

    candidates: tuple[CandidateKind, ...] = CANDIDATE_KINDS
    percents: tuple[float, ...] = (3.0, 10.0)
    folds: int = 5
    memory: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not set(self.candidates) <= set(CANDIDATE_KINDS):
            raise ArgumentError(
                f"candidates must be some of {', '.join(CANDIDATE_KINDS)}, got "
                f"{self.candidates!r}. Leave them out to try all."
            )
        object.__setattr__(self, "candidates", tuple(self.candidates))
        if not all(is_number(percent) and 0 < percent <= 100 for percent in self.percents):
            raise ArgumentError(
                f"percents must be in (0, 100], got {self.percents!r}. Try (3, 10)."
            )
        percents = tuple(sorted({float(percent) for percent in self.percents}))
        object.__setattr__(self, "percents", percents)
        if not is_whole(self.folds) or self.folds < 2:
            raise ArgumentError(f"folds must be 2 or more, got {self.folds!r}. Try 5.")
        for name, unit in (("memory", "bytes"), ("seconds", "seconds")):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise ArgumentError(
                    f"{name} must be a number of {unit} above 0, got {value!r}. Leave it out "
                    "for no limit."
                )
