"""The words for a difference."""

from __future__ import annotations

from smidgen.report.wording import ALIKE, HIGHER, LOWER, name_side


def test_an_interval_on_one_side_has_a_side():
    assert name_side(-0.2, -0.1) == LOWER
    assert name_side(0.1, 0.2) == HIGHER
    assert name_side(-0.1, 0.2) == ALIKE


def test_rounding_has_no_side():
    assert name_side(-6.9e-18, -6.9e-18) == ALIKE
    assert name_side(1e-17, 2e-17) == ALIKE
