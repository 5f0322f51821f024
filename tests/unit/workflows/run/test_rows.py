"""Rows of a run: what is assumed of them, and how new ones are read like the old."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smidgen.errors import ArgumentError, DataError
from smidgen.integrations.reading.tables import FeatureTable
from smidgen.integrations.text import TextTable
from smidgen.workflows.run.rows import read_noted_rows, read_run_rows
from smidgen.workflows.run.settings import RunSource


def write(path: Path, header: str, lines):
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def texts(tmp_path):
    lines = [f"text number {i} has seven words,{'ab'[i % 2]},{i % 60}" for i in range(120)]
    return write(tmp_path / "texts.csv", "words,y,who", lines)


def test_texts_are_told_from_a_table_and_that_is_said(texts):
    data = read_run_rows(RunSource(texts, "y", leave_out=("who",)), 0)
    assert isinstance(data.rows, TextTable)
    assert data.note.columns == ("words",)
    assert any("read as texts in words; pass --table" in line for line in data.said)


def test_rows_of_one_group_stay_together(texts):
    source = RunSource(texts, "y", "text", ("words",), group="who")
    split = read_run_rows(source, 3).note.split.rows
    sides = [{row % 60 for row in rows} for rows in split.values()]
    assert sum(map(len, sides)) == len(set().union(*sides)) == 60


def test_some_rows_only(texts):
    source = RunSource(texts, "y", "text", ("words",), limit=100)
    rows = read_run_rows(source, 0).note.split.rows
    assert sum(map(len, rows.values())) == 100


def test_a_column_says_what_rows_are_for(tmp_path):
    parts = ["train"] * 60 + ["dev"] * 90 + ["test"] * 30
    lines = [f"{i},{i % 2},{part}" for i, part in enumerate(parts)]
    path = write(tmp_path / "rows.csv", "x,y,part", lines)
    rows = read_run_rows(RunSource(path, "y", "table", split="part"), 0).note.split.rows
    assert rows["train"] == tuple(range(60))
    assert rows["test"] == tuple(range(150, 180))
    held = sorted(
        row for part in ("validation", "calibration", "decision") for row in rows[part]
    )
    assert held == list(range(60, 150))


def test_training_rows_that_stand_in_the_test_file_are_named_and_left_out(tmp_path):
    data = write(tmp_path / "a.csv", "t,y", [f"Text {i},{'ab'[i % 2]}" for i in range(200)])
    test = write(tmp_path / "b.csv", "t,y", ["text  7,b", "new,a", "TEXT 8,a"])
    source = RunSource(data, "y", "text", ("t",), test=test)
    read = read_run_rows(source, 0)
    taken = [row for name, rows in read.note.split.rows.items() for row in rows]
    assert not {7, 8} & set(taken)
    assert read.note.split.rows["test"] == (200, 201, 202)
    assert any(
        "2 train rows are the same as" in line and "'Text 7'" in line for line in read.said
    )


def test_new_rows_are_read_as_training_read_its_own(tmp_path):
    lines = [
        f"{i}.5,{'u' if i % 3 else 'v'},{'no' if i % 2 else 'yes'}" for i in range(150)
    ]
    path = write(tmp_path / "rows.csv", "x,town,y", lines)
    note = read_run_rows(RunSource(path, "y", "table"), 0).note
    assert note.columns == ("x", "town")
    new = write(tmp_path / "new.csv", "town,extra,x", ["u,1,5"])
    rows, columns = read_noted_rows(note, new, labelled=False)
    assert isinstance(rows, FeatureTable)
    assert rows.cells == {"x": (5.0,), "town": ("u",)}
    assert list(columns) == ["town", "extra", "x"]
    with pytest.raises(ArgumentError, match="label must be one of the columns"):
        read_noted_rows(note, new, labelled=True)


def test_labels_that_training_did_not_have_are_refused(tmp_path):
    path = write(tmp_path / "a.csv", "x,y", [f"{i},{'ab'[i % 2]}" for i in range(150)])
    test = write(tmp_path / "b.csv", "x,y", ["1000,c"])
    with pytest.raises(DataError, match="one of a, b"):
        read_run_rows(RunSource(path, "y", "table", test=test), 0)


@pytest.fixture
def topics(tmp_path):
    lines = [f"premise {i},topic {i % 3},{'ab'[i % 2]},{i // 4}" for i in range(500)]
    return write(tmp_path / "pairs.csv", "a,b,y,who", lines)


def test_a_topic_of_many_rows_makes_no_group_of_them(topics, tmp_path):
    source = RunSource(topics, "y", "text", ("a",), "b")
    read = read_run_rows(source, 0)
    assert sum(map(len, read.note.split.rows.values())) == 500
    (line,) = [line for line in read.said if "texts repeat" in line]
    assert "second texts repeat ('topic 0' stands in 167 rows)" in line
    assert "same pair or the same first text" in line
    test = write(
        tmp_path / "test.csv", "a,b,y", ["premise 7,TOPIC 1,b", "premise 8,topic 9,a"]
    )
    given = read_run_rows(replace(source, test=test), 0).note.split.rows
    assert given["test"] == (500, 501)
    assert {7, 8} & {row for rows in given.values() for row in rows} == {8}


def test_a_group_that_was_named_wins_over_the_texts_of_pairs(topics):
    read = read_run_rows(RunSource(topics, "y", "text", ("a",), "b", group="who"), 0)
    assert not [line for line in read.said if "texts repeat" in line]
    sides = [{row // 4 for row in rows} for rows in read.note.split.rows.values()]
    assert sum(map(len, sides)) == len(set().union(*sides)) == 125


def test_the_groups_of_a_part_are_in_the_order_of_its_rows(texts):
    read = read_run_rows(RunSource(texts, "y", "text", ("words",), group="who"), 0)
    part = read.part("calibration")
    numbers = [int(text.split()[2]) for text in part.texts]
    found = dict(zip(numbers, read.groups_of("calibration"), strict=True))
    assert all(found[n] == found[n + 60] for n in found if n < 60)
    assert len(set(found.values())) == len({n % 60 for n in numbers})


def test_a_promise_counts_one_row_of_each_group(texts):
    source = RunSource(texts, "y", "text", ("words",), group="who")
    read = read_run_rows(source, 0)
    rows = read.note.split.rows["decision"]
    who = [
        read.rows.texts.index(text) % 60
        for text in read.draw_from_groups("decision", 0).texts
    ]
    assert sorted(who) == sorted({row % 60 for row in rows})
    assert len(rows) == 2 * len(who)
    drawn = {read.draw_from_groups("decision", seed).texts for seed in range(5)}
    assert len(drawn) > 1


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "number"])
def test_a_column_that_counts_rows_is_no_feature_and_hides_no_duplicate(tmp_path, name):
    lines = [f"{i},{i // 2}.5,{'ab'[i // 2 % 2]}" for i in range(300)]
    test = write(tmp_path / "test.csv", f"{name},x,y", ["0,7.5,b", "1,-3.5,a"])
    path = write(tmp_path / "rows.csv", f"{name},x,y", lines)
    read = read_run_rows(RunSource(path, "y", "table", test=test), 0)
    assert read.note.columns == ("x",)
    assert f"{name!r} only counts the rows and is left out" in read.said
    taken = [{row // 2 for row in rows} for rows in read.note.split.rows.values()]
    assert sum(map(len, taken)) == len(set().union(*taken))
    assert not {14, 15} & {row for rows in read.note.split.rows.values() for row in rows}


def test_the_same_classes_in_another_order(texts):
    read = read_run_rows(RunSource(texts, "y", "text", ("words",)), 0)
    turned = read.order_classes(("b", "a"))
    assert turned.note.classes == turned.rows.label_names == ("b", "a")
    assert turned.rows.labels == tuple(1 - label for label in read.rows.labels)
    assert turned.note.split == read.note.split


def test_a_row_is_numbered_as_in_its_own_file(tmp_path):
    lines = [f"{'long ' * (i % 9)}text {i},{'ab'[i % 2]}" for i in range(200)]
    data = write(tmp_path / "a.csv", "t,y", lines)
    source = RunSource(data, "y", "text", ("t",))
    read = read_run_rows(source, 0)
    texts = [lines[row].split(",")[0] for row in read.number_rows("test")]
    assert tuple(texts) == read.part("test").texts
    test = write(tmp_path / "b.csv", "t,y", ["a long new text,a", "short,b"])
    read = read_run_rows(replace(source, test=test), 0)
    assert read.number_rows("test") == [1, 0]


def test_a_class_without_training_rows_is_refused_and_others_are_said(tmp_path):
    parts = ["train"] * 60 + ["dev"] * 90 + ["test"] * 30
    lines = [f"{i}.5,{'ab'[i % 2]},{part}" for i, part in enumerate(parts)]
    source = RunSource(tmp_path / "rows.csv", "y", "table", split="part")
    write(source.data, "x,y,part", [*lines, "-1,c,test"])
    with pytest.raises(DataError, match="must have every class, got none of 'c'"):
        read_run_rows(source, 0)
    write(source.data, "x,y,part", [*lines, "-1,c,test", "-2,c,train"])
    said = read_run_rows(source, 0).said
    assert "warning: none of the calibration rows is of class 'c'" in said
    assert "warning: none of the decision rows is of class 'c'" in said


def test_images_on_another_scale_are_refused(tmp_path):
    values = np.random.default_rng(0).random((150, 4, 4), dtype=np.float32)
    labels = np.arange(150) % 2
    path, large = tmp_path / "small.npz", tmp_path / "large.npz"
    np.savez(path, x=values, y=labels)
    np.savez(large, x=255 * values, y=labels)
    for data, other in ((path, large), (large, path)):
        note = read_run_rows(RunSource(data, kind="images"), 0).note
        assert len(read_noted_rows(note, data, labelled=True)[0]) == 150
        with pytest.raises(DataError, match="on the scale of training"):
            read_noted_rows(note, other, labelled=False)
        with pytest.raises(DataError, match="on the scale of training"):
            read_run_rows(RunSource(data, kind="images", test=other), 0)


def test_an_overlap_names_the_part_and_the_rows_of_each_file(tmp_path):
    lines = [f"text {i},{'ab'[i % 2]}" for i in range(100)]
    data = write(tmp_path / "a.csv", "t,y", lines)
    held = [f"held {i},{'ab'[i % 2]}" for i in range(90)]
    val = write(tmp_path / "v.csv", "t,y", [*held, "text 4,a"])
    test = write(tmp_path / "t.csv", "t,y", ["new,a", "other,b", "held 5,b"])
    source = RunSource(data, "y", "text", ("t",), validation=val, test=test)
    said = [line for line in read_run_rows(source, 0).said if "held out for" in line]
    assert len(said) == 2
    assert "1 validation rows are" in said[0]
    assert "held out for test and" in said[0]
    assert "row 6 of v.csv ('held 5'), which is like row 3 of t.csv" in said[0]
    assert "1 train rows are" in said[1]
    assert "held out for validation and" in said[1]
    assert "row 5 of a.csv ('text 4'), which is like row 91 of v.csv" in said[1]
