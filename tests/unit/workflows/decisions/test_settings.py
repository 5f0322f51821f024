from __future__ import annotations

import pytest

from smidgen.errors import ArgumentError
from smidgen.workflows.decisions.settings import CompareSettings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rules": {"abstain": 1}}, "rules must be a Rules, got dict. Make"),
        ({"texts": "one text"}, "texts must be a list of strings, got str. Pass a string"),
        ({"texts": [1, 2]}, "texts must be a list of strings, got list"),
        ({"row_numbers": 3}, "row_numbers must be a list of whole numbers, got int. Pass"),
        ({"row_numbers": [1.5]}, "row_numbers must be a list of whole numbers, got list"),
        ({"class_names": 3}, "class_names must be a list of strings, got int"),
        (
            {"max_errors": 0.05},
            r"max_errors must be numbers between 0 and 1, got 0.05. Pass",
        ),
        ({"max_errors": ()}, r"max_errors must be numbers between 0 and 1, got \(\)"),
        ({"max_errors": (5,)}, r"max_errors must be numbers between 0 and 1, got \(5,\)"),
        ({"max_errors": "5%"}, "max_errors must be numbers between 0 and 1, got '5%'"),
    ],
)
def test_wrong_settings_are_refused_when_made(wrong, message):
    with pytest.raises(ArgumentError, match=message):
        CompareSettings(**wrong)
