import numpy as np
import pytest

from smidgen.errors import DataError
from smidgen.integrations.reading.given_cells import name_cells, require_texts

NAN = float("nan")


def test_cells_come_by_name_in_order_or_alone():
    row = {"b": 2, "a": 1, "more": 3}
    assert name_cells(row, ("a", "b"), "row 1") == row
    for cells in ([1, 2], (1, 2), np.array([1, 2])):
        assert name_cells(cells, ("a", "b"), "row 1") == {"a": 1, "b": 2}
    assert name_cells("alone", ("a",), "row 1") == {"a": "alone"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"a": 1, "bb": 2},
            r"row 7 must have the column 'b', .* got 'a', 'bb'\. Rename 'bb' to 'b'\.$",
        ),
        ({}, "row 7 must have the column 'a', as in training, got none"),
        ({str(n) * 200: 0 for n in range(999)}, "must have the column 'a'"),
        ([1], r"row 7 must have a value for each of 2 columns \(a, b\), got 1\. Give them"),
        ("ab", r"a value for each of 2 columns \(a, b\), got 1"),
        (5, r"a value for each of 2 columns \(a, b\), got 5"),
    ],
)
def test_rows_with_other_columns_are_refused(row, message):
    with pytest.raises(DataError, match=message) as refused:
        name_cells(row, ("a", "b"), "row 7")
    assert len(str(refused.value)) < 2000


@pytest.mark.parametrize("row", [("x", "", "z"), ("x", None, "z"), (NAN, "y", "z")])
def test_some_of_the_columns_of_one_text_may_be_empty(row):
    require_texts(dict(zip("abc", row, strict=True)), ("a", "b"), "c", "row 7")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("", None, "z"), "row 7 must have a text in 'a' or 'b', got none. Fill or remove"),
        ((NAN, " \n", "z"), "row 7 must have a text in 'a' or 'b', got none"),
        (("x", "y", " "), "row 7 must have a text in 'c', got none"),
        (("x", 3, "z"), "row 7 must have a text in 'b', got 3. Write it as a text"),
        (("x", "y", True), "row 7 must have a text in 'c', got True"),
    ],
)
def test_rows_without_a_text_are_refused(row, message):
    with pytest.raises(DataError, match=message):
        require_texts(dict(zip("abc", row, strict=True)), ("a", "b"), "c", "row 7")
