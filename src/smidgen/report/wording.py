"""The three things that can be said of a difference, in the same words everywhere."""

from __future__ import annotations

LOWER, HIGHER, ALIKE = "clearly lower", "clearly higher", "cannot be told apart"


def name_side(low: float, high: float) -> str:
    """Say on which side of zero an interval lies, if wholly on one."""
    return LOWER if high < 0 else HIGHER if low > 0 else ALIKE
