"""Answers beside the columns that were read."""

import csv
import json
from datetime import datetime

import pytest

from smidgen.errors import ArgumentError
from smidgen.integrations.reading.answers_file import add_columns, write_answers

COLUMNS = {
    "text": ['a "b", c', "tab\tnew\nline"],
    "x": [None, 0.1],
    "abstain": [True, False],
}


def test_csv_is_read_as_it_was_written(tmp_path):
    path = write_answers(tmp_path / "a.csv", COLUMNS)
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["text", "x", "abstain"]
    assert rows[1] == ['a "b", c', "", "true"]
    assert rows[2] == ["tab\tnew\nline", "0.1", "false"]


def test_tsv_has_one_line_a_row_without_quotes(tmp_path):
    lines = write_answers(tmp_path / "a.tsv", COLUMNS).read_text().splitlines()
    assert lines[1:] == ['a "b", c\t\ttrue', "tab new line\t0.1\tfalse"]


def test_json_lines_keep_types(tmp_path):
    lines = write_answers(tmp_path / "a.jsonl", COLUMNS).read_text().splitlines()
    assert json.loads(lines[0]) == {"text": 'a "b", c', "x": None, "abstain": True}


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"must end in \.csv"):
        write_answers(tmp_path / "a.xlsx", COLUMNS)


def test_a_taken_name_is_not_replaced():
    joined = add_columns({"answer": ["mine"]}, {"answer": ["ours"], "set": ["a|b"]})
    assert joined == {"answer": ["mine"], "answer_": ["ours"], "set": ["a|b"]}


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_values_that_json_lacks_are_written_as_texts(tmp_path, suffix):
    day = datetime(2026, 11, 18, 9, 30)
    path = write_answers(tmp_path / f"a{suffix}", {"day": [day], "days": [[day]]})
    assert path.read_text().count("2026-11-18 09:30:00") == 2
