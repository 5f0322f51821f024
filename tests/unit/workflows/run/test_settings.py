"""What cannot be said together."""

from pathlib import Path

import pytest

from smidgen.errors import ArgumentError
from smidgen.workflows.run.settings import (
    RunSettings,
    RunSource,
    refuse_idle_options,
)

DATA = Path("rows.csv")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"split": "s", "test": DATA}, "--split must be left out beside --test"),
        ({"kind": "images", "group": "g"}, "--group must be left out for images"),
        ({"kind": "table", "text": ("a",)}, "--text must be left out beside --table"),
        (
            {"kind": "table", "text_pair": "a"},
            "--text-pair must be left out beside --table",
        ),
    ],
)
def test_two_ways_to_say_a_thing(typed, message):
    with pytest.raises(ArgumentError, match=message):
        RunSource(DATA, **typed)


def test_one_model():
    with pytest.raises(ArgumentError, match="--trained must be left out beside --model"):
        RunSettings(model="a", trained="b")


@pytest.mark.parametrize(
    ("kind", "is_regression", "source", "settings", "message"),
    [
        (
            "table",
            False,
            {},
            {"model": "m"},
            "--model must be left out for a table, got 'm'",
        ),
        (
            "images",
            False,
            {},
            {"max_length": 9},
            "--max-length must be left out for images",
        ),
        ("images", False, {"label": "y"}, {}, "--label must be left out for images"),
        ("text", False, {"leave_out": ("a", "b")}, {}, "--leave-out .* texts, got a,b"),
        ("images", False, {"leave_out": ("a",)}, {}, "--leave-out .* images"),
        ("text", True, {}, {"max_error": 0.1}, "--max-error must be left out for numbers"),
        (
            "text",
            False,
            {},
            {"trained": "m", "epochs": 3},
            "--epochs .* for --trained, got 3",
        ),
    ],
)
def test_what_would_do_nothing_is_refused(kind, is_regression, source, settings, message):
    with pytest.raises(ArgumentError, match=message):
        refuse_idle_options(
            RunSource(DATA, **source),
            RunSettings(**settings),
            kind,
            is_regression=is_regression,
        )


def test_what_does_something_is_not_refused():
    chosen = RunSource(DATA, "y", leave_out=("a",), group="g")
    errors = RunSettings(max_error=0.1, epochs=3)
    assert errors.allowed_error == 0.1
    assert RunSettings().allowed_error == 0.05
    refuse_idle_options(chosen, errors, "table", is_regression=False)
    texts = RunSettings(model="m", max_length=9)
    pairs = RunSource(DATA, kind="text", text_pair="b")
    refuse_idle_options(pairs, texts, "text", is_regression=True)


def test_files_in_order():
    source = RunSource(DATA, test=Path("t.csv"), validation=Path("v.csv"))
    assert source.files == (DATA, Path("v.csv"), Path("t.csv"))
