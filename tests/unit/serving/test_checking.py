import base64
import dataclasses
import io
import json

import numpy as np
import pytest
from PIL import Image

from smidgen.integrations.reading.scaling import CategoryColumn, NumberColumn, Scaling
from smidgen.integrations.reading.task_note import TaskNote
from smidgen.serving.checking import check_rows, find_sent_rows, parse_body
from smidgen.serving.form import make_form
from smidgen.serving.refusals import Refusal
from smidgen.serving.settings import ServingSettings

SETTINGS = ServingSettings(max_rows=3, max_characters=10)
SCALING = Scaling(
    (NumberColumn("x", 0.0, 1.0, 0.25, True), CategoryColumn("town", ("Bonn", "Ulm")))
)
TABLE = make_form(
    TaskNote("table", ("x", "town"), label="y", classes=("a", "b"), scaling=SCALING)
)
TEXT = make_form(TaskNote("text", ("sentence",), classes=("a", "b")))
JOINED = make_form(TaskNote("text", ("title", "body"), classes=("a", "b")))
PAIR = make_form(TaskNote("text", ("one",), text_pair="two", classes=("a", "b")))
GREY = make_form(TaskNote("images", classes=("a", "b"), shape=(1, 2, 3), span=(0.0, 1.0)))
COLOUR = make_form(TaskNote("images", classes=("a", "b"), shape=(3, 2, 2), span=(0.0, 1.0)))


def refuse(status, message, call, *words):
    with pytest.raises(Refusal, match=message) as refused:
        call(*words)
    assert refused.value.status == status


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, b"", "must be JSON, got something else at character 0"),
        (400, b'{"rows": [1,]}', "must be JSON, got something else at character 12"),
        (400, b'{"row": "\xff"}', "must be UTF-8, got byte 0xff at 9"),
        (400, b'{"row": "a"}'.decode().encode("utf-16"), "must be UTF-8"),
        (400, b"[" * 100_000, "nested a few levels deep"),
        (400, b'{"row":' * 50_000, "nested a few levels deep"),
        (400, b'{"row": ' + b"1" * 5000 + b"}", "must hold usual numbers"),
        (422, b'{"row": NaN}', "must be finite, got NaN"),
        (422, b'{"row": -Infinity}', "must be finite, got -Infinity"),
    ],
)
def test_bodies_that_are_no_json(status, body, message):
    refuse(status, message, parse_body, body)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], r"the body must be an object, got a list of 1\."),
        (None, "the body must be an object, got null"),
        ({}, "must have the field 'rows', got no field"),
        ({"text": "a"}, "must have the field 'rows', got 'text'"),
        ({"row": 1, "rows": [1]}, "got both 'row' and 'rows'"),
        ({"rows": {"a": 1}}, "'rows' must be a list, got an object"),
        ({"rows": []}, "'rows' must hold at least one row, got none"),
        ({"rows": [1, 2, 3, 4]}, "'rows' must hold at most 3 rows, got 4"),
    ],
)
def test_bodies_without_rows(content, message):
    refuse(422, message, find_sent_rows, content, SETTINGS)


def test_one_row_and_several():
    assert find_sent_rows({"row": {"x": 1}}, SETTINGS) == [{"x": 1}]
    assert find_sent_rows({"rows": [1, 2]}, SETTINGS) == [1, 2]


@pytest.mark.parametrize(
    ("form", "row", "message"),
    [
        (TABLE, "x", r"row 2 must be an object with a value for each column \(x, town\)"),
        (TABLE, [1, "Ulm"], "row 2 must be an object with a value .* got a list of 2"),
        (TABLE, {"x": 1}, "row 2 must have the column 'town', as in training, got 'x'"),
        (TABLE, {"x": 1, "Town": "Ulm"}, r"'Town'\. Rename 'Town' to 'town'\."),
        (TABLE, {"x": 1, "town": "", "y": 2}, "row 2 must have no columns but x, town"),
        (TABLE, {"x": "four", "town": "Ulm"}, "a finite number in 'x', .* got 'four'"),
        (TABLE, {"x": float("inf"), "town": "Ulm"}, "a finite number in 'x'.* Infinity"),
        (TABLE, {"x": "1e999", "town": "Ulm"}, "a finite number in 'x'"),
        (TABLE, {"x": 10**400, "town": "Ulm"}, "number in 'x'.* a very large number"),
        (
            TABLE,
            {"x": 1e39, "town": "Ulm"},
            "from -3.4e.38 to 3.4e.38 in 'x', .* got 1e.39",
        ),
        (TABLE, {"x": "-1e39", "town": "Ulm"}, "a number from .* in 'x', .* got '-1e39'"),
        (TABLE, {"x": [1], "town": "Ulm"}, "number in 'x', .* got a list of 1"),
        (TABLE, {"x": 1, "town": {}}, "a text or a number in 'town', .* got an object"),
        (TABLE, {"x": 1, "town": "U" * 11}, "at most 10 characters in 'town', got 11"),
        (TABLE, {"x": 1, "town": "\ud800"}, "whole characters, got half of one in 'town'"),
        (TEXT, 1, "row 2 must be a text or an object with .* got 1"),
        (TEXT, True, "row 2 must be a text or an object with .* got true"),
        (TEXT, None, "row 2 must be a text or an object with .* got null"),
        (TEXT, " \n", "row 2 must have a text in 'sentence', got none"),
        (TEXT, "a" * 11, "at most 10 characters in 'sentence', got 11"),
        (TEXT, "a\udfff", "whole characters, got half of one"),
        (TEXT, ["a", "b"], r"a value for each of 1 columns \(sentence\), got 2"),
        (TEXT, {"sentence": 3}, "must have a text in 'sentence', got 3"),
        (JOINED, "a", r"for each of 2 columns \(title, body\), got 1"),
        (JOINED, {"title": "", "body": None}, "in 'title' or 'body', got none"),
        (PAIR, {"one": "a", "two": ""}, "a text in 'two', got none"),
        (PAIR, ["a"], r"a value for each of 2 columns \(one, two\), got 1"),
        (PAIR, ["a", 2], "must have a text in 'two', got 2"),
        (GREY, "no base64!", "a picture in base64, got another text"),
        (GREY, "aGVsbG8=", "row 2 must be a picture .* got something else"),
        (GREY, [[1, 2, 3]], "numbers of shape 1 × 2 × 3, got a list of 1"),
        (GREY, [[0, 0, 0], [0, 0, "0"]], "numbers of shape 1 × 2 × 3"),
        (GREY, [[0, 0, 0], [0, 0, True]], "numbers of shape 1 × 2 × 3"),
        (GREY, [[0, 0, 0], [0, 0, 255]], "on the scale of training, 0 to 1, got 0 to 255"),
        (GREY, [[0, 0, 0], [0, 0, float("inf")]], "must be finite numbers"),
        (GREY, [[0, 0, 0], [0, 0, 10**400]], "must be finite numbers"),
        (GREY, {"image": "x"}, "must be a picture in base64, or numbers"),
    ],
)
def test_rows_that_cannot_be_used_are_named(form, row, message):
    good = {"table": {"x": 1, "town": "Ulm"}, "text": "good", "images": [[[0.5] * 3] * 2]}
    first = good[form.kind]
    if form in (JOINED, PAIR):
        first = ["a", "b"]
    refuse(422, message, check_rows, form, [first, row], SETTINGS)


def test_rows_of_a_table():
    rows = [
        {"x": 1, "town": "Ulm"},
        {"town": None, "x": " 2.5 "},
        {"x": None, "town": "Jena"},
        {"x": True, "town": 7},
    ]
    assert check_rows(TABLE, rows, SETTINGS) == rows


def test_a_value_must_be_there_where_nothing_fills_gaps():
    column = dataclasses.replace(TABLE.fields[0], may_lack=False)
    strict = dataclasses.replace(TABLE, fields=(column, TABLE.fields[1]))
    row = {"x": None, "town": "Ulm"}
    refuse(
        422, "a finite number in 'x', .* null. Fill it", check_rows, strict, [row], SETTINGS
    )


def test_texts_alone_and_by_column():
    rows = ["a", {"sentence": "b"}]
    assert check_rows(TEXT, rows, SETTINGS) == [{"sentence": "a"}, {"sentence": "b"}]
    rows = [["a", "b"], {"two": "d", "one": "c"}]
    assert check_rows(PAIR, rows, SETTINGS) == [{"one": "a", "two": "b"}, rows[1]]
    some = {"title": "", "body": "a"}
    assert check_rows(JOINED, [some], SETTINGS) == [some]


def encode(picture, kind="PNG"):
    written = io.BytesIO()
    picture.save(written, kind)
    return base64.b64encode(written.getvalue()).decode()


def test_pictures_of_any_kind_and_size_become_pixels_of_the_shape():
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
    plain = encode(Image.fromarray(pixels))
    for text in (plain, f"data:image/png;base64,{plain}"):
        (found,) = check_rows(GREY, [text], SETTINGS)
        np.testing.assert_allclose(found, pixels[None] / np.float32(255))
    large = encode(Image.new("RGB", (40, 30), (255, 0, 0)), "WEBP")
    (found,) = check_rows(COLOUR, [large], SETTINGS)
    assert found.shape == (3, 2, 2)
    assert found[0].min() > 0.95 > 0.05 > found[1:].max()
    rows = [(pixels / 255).tolist(), (pixels[None] / 255).tolist()]
    for found in check_rows(GREY, rows, SETTINGS):
        np.testing.assert_allclose(found, pixels[None] / 255, rtol=1e-6)


def test_a_small_file_of_a_very_large_picture_is_refused():
    huge = encode(Image.new("1", (8000, 6000)))
    assert len(huge) < 2**16
    refuse(422, "at most 40 million pixels", check_rows, GREY, [huge], SETTINGS)


def test_pictures_of_a_request_are_bounded_together_before_any_is_decoded(monkeypatch):
    def refuse_to_decode(*_):
        raise AssertionError("decoded")

    large = encode(Image.new("1", (6000, 3000)))
    with monkeypatch.context() as patch:
        patch.setattr("smidgen.serving.checking.decode_picture", refuse_to_decode)
        rows = [large, [[0.5] * 3] * 2, large, large]
        message = "at most 40 million pixels together, got more up to row 4"
        refuse(413, message, check_rows, GREY, rows, SETTINGS)
    assert len(check_rows(GREY, [large, large], SETTINGS)) == 2


def test_formats_that_nobody_asked_for_are_refused():
    icon = encode(Image.new("L", (16, 16)), "ICO")
    refuse(422, "got something else", check_rows, GREY, [icon], SETTINGS)
    broken = base64.b64encode(base64.b64decode(encode(Image.new("L", (99, 99), 7)))[:60])
    refuse(422, "got something else", check_rows, GREY, [broken.decode()], SETTINGS)


@pytest.mark.parametrize("form", [TABLE, TEXT, JOINED, PAIR, GREY, COLOUR])
def test_the_example_of_a_form_is_a_row(form):
    example = json.loads(json.dumps(form.example()))
    assert len(check_rows(form, [example], SETTINGS)) == 1
    assert form.row_schema()
