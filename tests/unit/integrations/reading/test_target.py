"""Labels of a run: names, whole numbers, decimal numbers, and what is assumed."""

from pathlib import Path

import pytest

from smidgen.errors import DataError
from smidgen.integrations.reading.target import read_target

PATH = Path("rows.csv")


def test_texts_are_classes_in_the_order_of_their_names():
    target = read_target(["World", "Sports", "World"], PATH)
    assert target.names == ("Sports", "World")
    assert target.labels == (1, 0, 1)
    assert target.assumed is None


def test_few_whole_numbers_are_classes_in_their_order():
    target = read_target(["10", "2", "3", "10"], PATH)
    assert target.names == ("2", "3", "10")
    assert target.labels == (2, 0, 1, 2)
    assert "--regression" in target.assumed


def test_whole_numbers_that_came_as_floats_are_whole():
    assert read_target([1.0, 0.0, 1.0], PATH).names == ("0", "1")


def test_many_whole_numbers_are_a_regression_unless_said_otherwise():
    values = [str(number) for number in range(30)]
    target = read_target(values, PATH)
    assert target.names is None
    assert target.labels[3] == 3.0
    assert "30 different" in target.assumed
    assert "--classes" in target.assumed
    assert len(read_target(values, PATH, kind="classes").names) == 30


def test_decimal_numbers_are_a_regression():
    target = read_target(["1.5", "2"], PATH)
    assert target.names is None
    assert target.labels == (1.5, 2.0)


def test_whole_numbers_are_numbers_if_asked():
    assert read_target(["1", "2"], PATH, kind="regression").labels == (1.0, 2.0)


def test_known_names_number_the_classes_and_refuse_others():
    assert read_target(["b", "a"], PATH, names=("a", "b")).labels == (1, 0)
    with pytest.raises(DataError, match="one of a, b"):
        read_target(["c"], PATH, names=("a", "b"))


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        (["a", ""], None, "given in every row, got none in row 2"),
        (["a", "1"], None, "all numbers or all names"),
        (["a", "a"], None, "2 classes or more"),
        (["1", "a"], "regression", "a number in every row"),
    ],
)
def test_labels_that_cannot_be_used(values, kind, message):
    with pytest.raises(DataError, match=message):
        read_target(values, PATH, kind=kind)


def test_numbers_and_names_may_be_mixed_if_all_are_classes():
    assert read_target(["a", "1"], PATH, kind="classes").names == ("1", "a")


def test_numbers_are_not_taken_for_names_by_their_place():
    with pytest.raises(DataError, match="one of a, b, as in training, got 0 in row 2"):
        read_target(["a", "0"], PATH, names=("a", "b"))


@pytest.mark.parametrize(
    "values",
    [[True, False, True], ["01", "02", "01"], ["1.0", "0.0", "1.0"], [1.0, 2.0, 1.0]],
)
def test_what_training_read_is_read_again(values):
    first = read_target(values, PATH, kind="classes")
    assert read_target(values, PATH, names=first.names) == first


def test_whole_numbers_with_a_decimal_point_are_alike_in_every_format():
    written, stored = (read_target(v, PATH) for v in (["0.0", "1.0"], [0.0, 1.0]))
    assert written == stored
    assert written.names == ("0", "1")
    assert "2 different whole numbers, taken for classes; pass --regr" in written.assumed
