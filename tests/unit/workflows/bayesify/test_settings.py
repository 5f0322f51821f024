"""Settings of `bayesify` that make no sense are refused in a sentence."""

from __future__ import annotations

import pytest

from smidgen.errors import ArgumentError
from smidgen.workflows.bayesify.settings import CANDIDATE_KINDS, BayesifySettings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": ("swag",)}, "candidates must be some of temperature, last-layer"),
        ({"percents": (0, 10)}, r"percents must be in \(0, 100\], got \(0, 10\)"),
        ({"percents": ("10",)}, r"percents must be in \(0, 100\]"),
        ({"folds": 1}, "folds must be 2 or more, got 1"),
        ({"folds": 2.5}, "folds must be 2 or more, got 2.5"),
        ({"memory": -1}, "memory must be a number of bytes above 0, got -1"),
        ({"seconds": 0}, "seconds must be a number of seconds above 0, got 0"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        BayesifySettings(**options)


def test_sizes_are_sorted_and_distinct_and_lists_will_do():
    settings = BayesifySettings(percents=[10, 3, 10.0], candidates=list(CANDIDATE_KINDS))
    assert settings.percents == (3.0, 10.0)
    assert settings.candidates == CANDIDATE_KINDS
