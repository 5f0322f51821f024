"""What all rules share: they are checked when made, and go to JSON and back."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, ClassVar, Self

from smidgen.errors import StoreError
from smidgen.runtime.reading import make_from_json


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """A decision on each row of a predictive, made from `rows` others.

    `left_out` counts the rows that had no label (−100) and so could not help.
    """

    name: ClassVar[str]
    rows: int
    left_out: int = 0

    def to_json(self) -> dict[str, Any]:
        """List all that the rule is, ready for JSON."""
        return asdict(self)

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
            numbers = value if isinstance(value, tuple) else (value,)
            for number in numbers:
                if isinstance(number, float) and not isfinite(number):
                    raise StoreError(f"{name} must be finite, got {number}")
        return rule

    def _about_rows(self) -> str:
        """Say how many rows made the rule, and how many could not."""
        without = f"; {self.left_out:,} more had no label" if self.left_out else ""
        return f"{self.rows:,} rows{without}"


def as_percent(fraction: float) -> str:
    """Write a fraction as a percentage of at most four digits, as in a sentence."""
    return f"{100 * fraction:.4g} %"
