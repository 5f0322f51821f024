"""What can be said of a difference, in the same words everywhere."""

from __future__ import annotations

LOWER, HIGHER, ALIKE = "clearly lower", "clearly higher", "cannot be told apart"
EQUAL = "equal within the margin"

# Scores that agree but for the last bits of their sums are alike.
_ROUNDING = 1e-12


def name_side(low: float, high: float) -> str:
    """Say on which side of zero an interval lies, if wholly on one."""
    return LOWER if high < -_ROUNDING else HIGHER if low > _ROUNDING else ALIKE
