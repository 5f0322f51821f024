"""What is too little to be divided is refused before any work."""

import pytest

from smidgen.errors import DataError
from smidgen.integrations.reading.tables import FeatureTable
from smidgen.integrations.reading.task_note import DataFile, TaskNote
from smidgen.workflows.run.dividing import ReadRows, divide_rows
from smidgen.workflows.run.settings import RunSource


def read(values, path="rows.csv"):
    labels = tuple(row % 2 for row in range(len(values)))
    table = FeatureTable({"x": tuple(map(float, values))}, labels, ("a", "b"))
    note = TaskNote(
        "table", ("x",), classes=("a", "b"), files=(DataFile(path, len(table), ""),)
    )
    return ReadRows(table, note, table.keys())


def test_every_row_has_one_place(tmp_path):
    said = []
    split, groups = divide_rows(RunSource(tmp_path), read(range(300)), 0, said)
    assert sorted(row for rows in split.rows.values() for row in rows) == list(range(300))
    assert groups == tuple(range(300))
    assert said[-1].startswith("rows divided by seed 0: 12")


def test_rows_that_are_all_alike_may_be_on_both_sides_and_that_is_said(tmp_path):
    said = []
    divide_rows(RunSource(tmp_path), read([row % 7 for row in range(300)]), 0, said)
    assert "only 7 different rows" in said[0]


def test_too_few_rows_to_calibrate_with(tmp_path):
    with pytest.raises(
        DataError, match="20 rows or more must be left.*Give 1[0-9]{2} rows"
    ):
        divide_rows(RunSource(tmp_path), read(range(60)), 0, [])


def test_rows_that_are_not_used_are_said(tmp_path):
    said, more = [], []
    divide_rows(RunSource(tmp_path, limit=200), read(range(3000)), 4, said)
    assert said[0] == f"200 of the 3,000 rows of {tmp_path} are used, drawn by seed 4"
    divide_rows(RunSource(tmp_path, limit=300), read(range(300)), 4, more)
    assert not any("are used" in sentence for sentence in more)
