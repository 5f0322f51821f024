"""What training saw is stored, sealed, and what differs is refused."""

import json
import tracemalloc

import pytest

from smidgen.errors import ArgumentError, StoreError
from smidgen.integrations.reading.scaling import measure_scaling
from smidgen.integrations.reading.task_note import (
    TASK_NOTE,
    DataFile,
    SplitNote,
    TaskNote,
    find_note,
    read_ranges,
    use_note,
    write_ranges,
)
from smidgen.runtime.artifact import write_sealed_json

OPTIONS = {"columns": "--text", "text_pair": "--text-pair", "max_length": "--max-length"}


def make_note():
    return TaskNote(
        "table",
        ("age", "town"),
        label="y",
        classes=("a", "b"),
        scaling=measure_scaling({"age": (1.0, None), "town": ("Ulm", "Bonn")}),
        target=(1.0, 2.5),
        shape=(1, 2, 3),
        files=(DataFile("rows.csv", 9, "abc"),),
        split=SplitNote(3, {"train": 0.6, "test": 0.4}, {"train": (0, 1, 5), "test": (2,)}),
    )


def test_it_is_read_as_it_was_written(tmp_path):
    note = make_note()
    note.save(tmp_path)
    assert find_note(tmp_path) == note
    assert find_note(tmp_path / "gone") is None
    assert find_note("x" * 5000) is None


def test_an_edited_or_unknown_note_is_refused(tmp_path):
    make_note().save(tmp_path)
    path = tmp_path / TASK_NOTE
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "label": "z"}))
    with pytest.raises(StoreError, match="digest"):
        TaskNote.load(tmp_path)


def test_what_differs_is_refused_in_one_sentence():
    note = TaskNote("text", ("title", "text"), "second", "y", max_length=64)
    assert use_note(note, {"columns": ("title", "text")}, options=OPTIONS) == note
    assert use_note(note, {"max_length": None}, options=OPTIONS) == note
    with pytest.raises(ArgumentError, match="--max-length must be what training saw, 64"):
        use_note(note, {"max_length": 128}, options=OPTIONS)
    with pytest.raises(ArgumentError, match="--text must be .*'title,text', got 'text'"):
        use_note(note, {"columns": ("text",)}, options=OPTIONS)


def test_the_label_may_have_another_name_in_other_files():
    note = TaskNote("text", ("text",), label="y")
    assert use_note(note, {"label": "truth"}, options=OPTIONS).label == "truth"


def test_the_label_may_be_bound_too_and_none_is_said_as_none():
    note = TaskNote("text", ("text",), label="y")
    options = {**OPTIONS, "label": "--label"}
    with pytest.raises(ArgumentError, match="--label must be .* saw, 'y', got 'truth'"):
        use_note(note, {"label": "truth"}, options=options, may_differ=())
    with pytest.raises(ArgumentError, match="--text-pair must be .* saw, none, got 'b'"):
        use_note(note, {"text_pair": "b"}, options=options)


def test_ranges_are_short():
    rows = (0, 1, 2, 5, 7, 8)
    assert write_ranges(rows) == "0-2,5,7-8"
    assert read_ranges("0-2,5,7-8", 9) == rows
    assert read_ranges(write_ranges(()), 0) == ()


@pytest.mark.parametrize(
    "text", ["0-9", "9", "5-3", "2,1", "0-3,3", "0-999999999999", "9" * 500, "-1", "x"]
)
def test_ranges_are_of_rows_that_are_there(text):
    with pytest.raises((StoreError, ValueError)):
        read_ranges(text, 9)


@pytest.mark.parametrize(
    ("rows", "count", "message"),
    [
        ({"train": "0-20000000000"}, 9, "its rows '0-20000000000' must be of 9"),
        (
            {"train": "0-20000000000"},
            10**12,
            "must have 0 to 10,000,000 rows, got 1,000,000",
        ),
        ({"train": "0-8"}, -1, "must have 0 to"),
        ({str(n): "0-8" for n in range(9)}, 9, "parts have more rows than the 9 of its fi"),
        ({"train": 3}, 9, "does not hold what it should"),
    ],
)
def test_a_small_note_takes_little_memory(rows, count, message, tmp_path):
    values = make_note().to_json()
    values["split"]["rows"] = rows
    values["files"][0]["rows"] = count
    write_sealed_json(tmp_path / TASK_NOTE, values)
    tracemalloc.start()
    with pytest.raises(StoreError, match=message):
        TaskNote.load(tmp_path)
    # A file is read into a buffer of the most that it may have, 32 MiB.
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()
