"""Every architecture of the zoo goes the whole path, and is refused only as its row says.

`SMIDGEN_ZOO` names a file to which each adds a line of what was found, as `python -m bench zoo`
asks; without it, what was found must be what that record, and so docs/models.md, says.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from smidgen.runtime.record import Record
from tests.zoo.path import PERCENT, Walk
from tests.zoo.plain import PLAIN
from tests.zoo.signals import SIGNALS
from tests.zoo.text import TEXT

ZOO = {own.title: own for own in (*TEXT, *SIGNALS, *PLAIN)}
RECORD = Path(__file__).parents[2] / "bench" / "records" / "zoo.json"
# What no rounding changes.
TOLD = (
    "name",
    "kind",
    "task",
    "class",
    "weights",
    "covered",
    "layers",
    "fitted",
    "refused",
)

# A handful of examples calibrates nothing; layers that mix examples are counted.
pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")


@pytest.fixture(scope="module")
def recorded():
    return Record.load(RECORD).results["architectures"] if RECORD.is_file() else {}


@pytest.mark.parametrize("title", ZOO)
def test_the_whole_path(title, tmp_path, unchanged, recorded):
    walk = Walk(ZOO[title])
    with unchanged(walk.model):
        found = walk.run(tmp_path)
    if place := os.environ.get("SMIDGEN_ZOO"):
        line = {"number": list(ZOO).index(title), "title": title, "percent": PERCENT}
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line | {"found": found}) + "\n")
        return
    assert title in recorded, "run python -m bench zoo"
    told = recorded[title]
    assert {key: found[key] for key in TOLD} == {key: told[key] for key in TOLD}


def test_the_record_is_of_these_rows(recorded):
    assert len(ZOO) == len(TEXT) + len(SIGNALS) + len(PLAIN) >= 60
    if "SMIDGEN_ZOO" not in os.environ:
        assert list(recorded) == list(ZOO), "run python -m bench zoo"
