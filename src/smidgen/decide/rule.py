"""What all rules share: they are checked when made, and go to JSON and back."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, ClassVar, Self

from smidgen.decide.calibration_rows import require_open_fraction
from smidgen.errors import ArgumentError, StoreError
from smidgen.runtime.reading import make_from_json
from smidgen.runtime.showing.html import ShownInNotebook


@dataclass(frozen=True, kw_only=True)
class DecisionRule(ShownInNotebook, ABC):
    """A decision on each row of a predictive, made from `rows` others.

    `left_out` counts the rows that had no label (−100) and so could not help.
    """

    name: ClassVar[str]
    rows: int
    left_out: int = 0

    def to_json(self) -> dict[str, Any]:
        """List all that the rule is, ready for JSON."""
        return asdict(self)

    def __post_init__(self) -> None:
        for name in ("max_error", "confidence", "reject", "coverage", "rate"):
            value = getattr(self, name, None)
            if value is not None:
                require_open_fraction(name, value, 0.1)
        if self.rows < 1 or self.left_out < 0:
            raise ArgumentError(
                f"rows must be 1 or more and left_out 0 or more, got {self.rows} and "
                f"{self.left_out}. Make the rule again."
            )

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Make the rule of what `to_json` listed.

        Args:
            values: The fields by name.

        Returns:
            The rule.

        Raises:
            StoreError: If a field is missing, unknown, or of another type.
        """
        rule = make_from_json(cls, values)
        for name, value in asdict(rule).items():
            if not _is_finite(value):
                raise StoreError(f"{name} must be finite, got {value}")
        return rule

    def _about_rows(self) -> str:
        """Say how many rows made the rule, and how many could not."""
        without = f"; {self.left_out:,} more had no label" if self.left_out else ""
        return f"{self.rows:,} rows{without}"


def _is_finite(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or isfinite(value)


def as_percent(fraction: float) -> str:
    """Write a fraction as a percentage of at most four digits, as in a sentence."""
    return f"{100 * fraction:.4g} %"
