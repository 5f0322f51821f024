"""The page of models says what the zoo's record says."""

from __future__ import annotations

import pytest
from docs.build import committed
from docs.build.zoo_tables import TABLES

from smidgen.runtime.record import Record

ROW = {"kind": "text", "task": "classes", "weights": 200, "covered": 150, "layers": 4}
BERT = {**ROW, "name": "BERT", "class": "Bert", "fitted": 4, "agree": 4, "lost": 1}
MAMBA = {**ROW, "name": "Mamba", "class": "MambaLM", "fitted": 1, "covered": 20}
TIED = {**BERT, "name": "tied", "class": "Tied"}
ROWS = {
    "BERT: classes": BERT | {"refused": {}},
    "BERT, eager: tokens": BERT | {"name": "BERT, eager", "refused": {}},
    "Mamba: classes": MAMBA | {"refused": {"all layers": "no call.", "verify": "no call."}},
    "tied: classes": {k: v for k, v in TIED.items() if k not in ("agree", "lost")}
    | {"kind": "plain torch", "refused": {"verify": "1 of 4 layers disagree."}},
}


@pytest.fixture
def records(tmp_path, monkeypatch):
    monkeypatch.setattr(committed, "BENCHES", tmp_path)
    return tmp_path


def test_rows_and_refusals_are_those_of_the_record(records):
    timed = {title: row | {"seconds": 1.6} for title, row in ROWS.items()}
    results = {"architectures": timed, "seconds": 61.0}
    config = {"processes": 2, "peft": "9.9"}
    Record("zoo", config, results, seed=0).save(records / "zoo.json")
    tables = TABLES["zoo-tables"]()
    assert tables.index("### Text") < tables.index("### Plain torch")
    assert "| BERT (`Bert`) | classes | 75 % | 4 of 4 | yes | 4 agree, 1 lost" in tables
    assert "| 10 % | 1 of 4 | refused: all layers | refused |" in tables
    assert "| tied | classes | 75 % | 4 of 4 | yes | **disagrees** |" in tables
    assert "- Mamba, classes; all layers: “no call.”" in TABLES["zoo-refusals"]()
    assert "4 rows, 2 of them without any refusal" in TABLES["zoo-summary"]()
    assert "8 layers agree with the exact computation; of 2 of" in TABLES["zoo-summary"]()
    assert (
        "peft 9.9; `python -m bench zoo`, 6 s of processor time" in TABLES["zoo-summary"]()
    )
    line = TABLES["zoo-short"]()
    assert "3 architectures" in line
    assert "2 of the 4 without any refusal, 3 with more than half" in line


@pytest.mark.parametrize("name", TABLES)
def test_without_a_record_a_sentence_says_how_to_make_it(name, records):
    assert TABLES[name]().startswith(
        "There is no record of this code yet: `python -m bench"
    )
