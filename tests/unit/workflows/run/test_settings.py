"""What cannot be said together."""

from pathlib import Path

import pytest

from smidgen.errors import ArgumentError
from smidgen.workflows.run.settings import RunSettings, RunSource

DATA = Path("rows.csv")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ({"split": "s", "test": DATA}, "--split must be left out beside --test"),
        ({"kind": "images", "group": "g"}, "--group must be left out for images"),
        ({"kind": "table", "text": ("a",)}, "--text must be left out beside --table"),
    ],
)
def test_two_ways_to_say_a_thing(typed, message):
    with pytest.raises(ArgumentError, match=message):
        RunSource(DATA, **typed)


def test_one_model():
    with pytest.raises(ArgumentError, match="--trained must be left out beside --model"):
        RunSettings(model="a", trained="b")


def test_files_in_order():
    source = RunSource(DATA, test=Path("t.csv"), validation=Path("v.csv"))
    assert source.files == (DATA, Path("v.csv"), Path("t.csv"))
