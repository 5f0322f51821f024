"""Rows in memory are read as those of a file, and a wrong one is named."""

import csv
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
from datasets import Dataset
from PIL import Image

import smidgen
from smidgen.errors import DataError
from smidgen.integrations.reading.scaling import CategoryColumn, NumberColumn, Scaling
from smidgen.integrations.reading.task_note import TaskNote
from smidgen.workflows.predictor.given_rows import read_given_rows
from smidgen.workflows.run.rows import read_noted_rows

TABLE = TaskNote(
    "table",
    ("x", "town", "vip", "n"),
    label="y",
    classes=("a", "b"),
    scaling=Scaling(
        (
            NumberColumn("x", 1.0, 2.0, 0.5, True),
            CategoryColumn("town", ("3", "Bonn", "Ulm")),
            CategoryColumn("vip", ("False", "True")),
            NumberColumn("n", 0.0, 1.0, 0.0, False),
        )
    ),
)
CELLS = [["1.5", " Ulm ", "True", "1"], ["", "3", "False", "0"], ["nan", "Jena", "", "1"]]
TEXTS = TaskNote("text", ("title", "body"), label="y", classes=("a", "b"), max_length=9)
PAIRS = TaskNote("text", ("a",), text_pair="b", classes=("a", "b"), max_length=9)
IMAGES = TaskNote("images", classes=("a", "b"), shape=(1, 4, 5), span=(0.0, 1.0))


def encode(rows):
    return TABLE.scaling.encode(rows.cells)


@pytest.fixture
def from_file(tmp_path):
    """The inputs that the same rows have when they are read from a file."""
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["n", "vip", "town", "x", "who"], *(
            [n, vip, town, x, "A"] for x, town, vip, n in CELLS
        )])  # fmt: skip
    rows, _ = read_noted_rows(TABLE, path, labelled=False)
    return path, encode(rows)


DICTS = [
    {"x": 1.5, "town": "Ulm", "vip": True, "n": 1, "who": "A"},
    {"x": None, "town": 3, "vip": False, "n": False},
    {"x": float("nan"), "town": "Jena", "vip": None, "n": np.int64(1)},
]


@pytest.mark.parametrize(
    "rows",
    [
        DICTS,
        iter(DICTS),
        [tuple(row[name] for name in TABLE.columns) for row in DICTS],
        np.array([[row[n] for n in TABLE.columns] for row in DICTS], dtype=object),
        CELLS,
    ],
    ids=["dicts", "iterator", "tuples", "array", "texts"],
)
def test_a_table_is_read_as_from_a_file(rows, from_file):
    assert torch.equal(encode(read_given_rows(TABLE, rows)), from_file[1])


def test_frames_are_read_as_the_file_they_came_from(from_file):
    path, inputs = from_file
    frame = pandas.read_csv(path)
    # pandas has read True and False, which training read as words.
    assert torch.equal(encode(read_given_rows(TABLE, frame)), inputs)
    nullable = frame.convert_dtypes()
    assert torch.equal(encode(read_given_rows(TABLE, nullable)), inputs)
    data = Dataset.from_pandas(frame)
    assert torch.equal(encode(read_given_rows(TABLE, data)), inputs)


def test_numbers_come_as_an_array_or_a_tensor():
    note = replace(TABLE, columns=("x",), scaling=Scaling(TABLE.scaling.columns[:1]))
    rows = np.arange(3, dtype=np.float32)[:, None]
    inputs = note.scaling.encode({"x": (0.0, 1.0, 2.0)})
    for given in (rows, torch.from_numpy(rows), rows.tolist()):
        assert torch.equal(note.scaling.encode(read_given_rows(note, given).cells), inputs)


def test_texts_come_in_several_ways():
    both = ("Good.", "Very good.")
    joined = ("Good. . Very good.",)
    for rows in ([both], [list(both)], [dict(zip(TEXTS.columns, both, strict=True))]):
        assert read_given_rows(TEXTS, rows).texts == joined
    frame = pandas.DataFrame({"body": [both[1]], "title": [both[0]], "more": [1]})
    assert read_given_rows(TEXTS, frame).texts == joined
    assert read_given_rows(TEXTS, Dataset.from_pandas(frame)).texts == joined
    tensors = Dataset.from_pandas(frame).with_format("torch")
    assert read_given_rows(TEXTS, tensors).texts == joined
    assert read_given_rows(TEXTS, [{"title": "Only", "body": None}]).texts == ("Only",)
    table = read_given_rows(PAIRS, [("q", "r"), {"a": "s", "b": "t"}])
    assert (table.texts, table.pairs) == (("q", "s"), ("r", "t"))
    single = replace(TEXTS, columns=("text",))
    for rows in (["u", "v"], pandas.Series(["u", "v"]), np.array(["u", "v"])):
        assert read_given_rows(single, rows).texts == ("u", "v")


@pytest.mark.parametrize("kind", [None, "torch", "numpy", "pandas"])
def test_a_dataset_in_any_format_holds_the_same_table(kind):
    rows = [
        {"x": 1.5, "town": "Ulm", "vip": True, "n": 1},
        {"x": None, "town": "Jena", "vip": False, "n": 3},
    ]
    given = Dataset.from_list(rows).with_format(kind)
    assert read_given_rows(TABLE, given).cells == read_given_rows(TABLE, rows).cells


@pytest.mark.parametrize(
    ("note", "rows", "message"),
    [
        (TABLE, {"x": 1}, "rows must be a list of rows, got a single dict. Put it into a l"),
        (TEXTS, "a text", "got a single str. Put it into a list"),
        (IMAGES, "a.png", "got a single str. Put it into a list"),
        (TABLE, 5, "rows must be a list of rows, got int"),
        (TABLE, [], "rows must hold at least one row, got none"),
        (TABLE, [{"x": 1, "towm": "U", "vip": 0, "n": 1}], "row 1 must have the column 'town'"
         ".*Rename 'towm' to 'town'"),
        (TABLE, SimpleNamespace(columns=["x"]), "DataFrame of pandas or a list of rows, got Si"),
        (TABLE, pandas.DataFrame({"x": [1]}), "rows must have the column 'town', as in trai"),
        (TABLE, [DICTS[0], {**DICTS[0], "town": [1]}], r"column 'town' must hold numbers or "
         r"texts, got \[1\] in row 2"),
        (TABLE, [[1, 2]], r"row 1 must have a value for each of 4 columns \(x, town, vip, n\)"
         ", got 2"),
        (TABLE, [[1, 2, 3, 4], 7], "row 2 must have a value for each of 4 columns .*got 7"),
        (TEXTS, ["alone"], r"row 1 must have a value for each of 2 columns \(title, body\)"),
        (TEXTS, [("a", 3)], "row 1 must have a text in 'body', got 3"),
        (TEXTS, [("a", "b"), ("", " ")], "row 2 must have a text in 'title' or 'body', got none"),
        (PAIRS, [("a", "b"), ("c", "")], "row 2 must have a text in 'b', got none"),
        (IMAGES, [], "rows must hold at least one image"),
        (IMAGES, np.zeros((2, 5, 4)), r"must hold images of shape \(1, 4, 5\).*got \(1, 5, 4"),
        (IMAGES, np.full((2, 4, 5), 200), "values on the scale of training, 0 to 1, got 200"),
        (IMAGES, [np.zeros((4, 5)), np.zeros((4, 6))], r"row 2 must be an image of shape "
         r"\(4, 5\), as the first"),
        (IMAGES, ["no.png"], "row 1 must be the path of a picture"),
        (IMAGES, [[["a"]]], "rows must be images of numbers"),
        (IMAGES, np.full((2, 4, 5), np.nan), "row 1 must be an image of finite numbers"),
    ],
)  # fmt: skip
def test_a_wrong_row_is_named(note, rows, message):
    with pytest.raises(DataError, match=message):
        read_given_rows(note, rows)


def test_gaps_need_a_number_that_fills_them():
    task = smidgen.describe_table(["x", "z"], classes=None)
    rows = read_given_rows(task, [[1, 2], [None, 3]])
    with pytest.raises(
        DataError, match="column 'x' must be numbers from .* 1e.300 in row 2"
    ):
        task.scaling.encode(read_given_rows(task, [[1, 2], [1e300, 3]]).cells)
    with pytest.raises(DataError, match="column 'z' must be numbers.*'wide' in row 2"):
        task.scaling.encode(read_given_rows(task, [[1, 2], [1, "wide"]]).cells)
    with pytest.raises(
        DataError, match="column 'x' must have a number in every row.*row 2"
    ):
        task.scaling.encode(rows.cells)


def test_images_come_as_arrays_pictures_and_paths(tmp_path):
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (3, 4, 5)).astype(np.uint8)
    wanted = torch.from_numpy(pixels)[:, None] / 255
    pictures = [Image.fromarray(one) for one in pixels]
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    for picture, path in zip(pictures, paths, strict=True):
        picture.save(path)
    for rows in (
        pixels,
        pixels[..., None],
        pixels[:, None],
        torch.from_numpy(pixels),
        list(pixels),
        (pixels / np.float32(255)).tolist(),
        pictures,
        paths,
        [str(path) for path in paths],
    ):
        assert torch.allclose(read_given_rows(IMAGES, rows).inputs, wanted)
    assert read_given_rows(IMAGES, paths).files == tuple(map(str, paths))
