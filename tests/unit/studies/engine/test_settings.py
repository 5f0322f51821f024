"""Values of settings that will not do are refused before any cell is begun."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from smidgen.cli import main
from smidgen.errors import ArgumentError
from smidgen.workflows.ramp.swag import SwagOptions
from smidgen_studies.engine.cell import Cell
from smidgen_studies.engine.ledger import Ledger
from smidgen_studies.engine.run import check_cell
from smidgen_studies.engine.settings import (
    Count,
    Draws,
    Fractions,
    describe_type,
    fits,
    read_settings,
    type_hints,
)
from smidgen_studies.engine.study import read_study, shipped_studies, study_text
from smidgen_studies.kinds import KINDS, find_kind

ROOT = Path(__file__).parents[4]
TABLES = """
baseline = "map"
[[data]]
name = "Waves"
folder = "waves"
[[cells]]
name = "map"
kind = "uci-map"
[[cells]]
name = "laplace"
kind = "uci-laplace"
needs = ["map"]
each = { by = ["magnitude", "random"] }
[[cells]]
name = "swag"
kind = "uci-swag"
needs = ["map"]
by = "magnitude"
[profiles.small]
seeds = [0, 1]
cells.map = { epochs = 400 }
cells.laplace = { percents = [5, 37] }
cells.swag = { steps = 400 }
"""
TEXTS = """
[[data]]
name = "tickets"
train = "train.csv"
test = "test.csv"
train_size = 20
[[cells]]
name = "constant"
kind = "constant"
[profiles.small]
seeds = [0, 1, 2]
"""


@pytest.fixture
def tables(tmp_path):
    folder = tmp_path / "data" / "waves"
    folder.mkdir(parents=True)
    np.savetxt(folder / "data.txt", np.random.default_rng(0).normal(size=(20, 3)))
    for name, rows in {"features": [0, 1], "target": [2]}.items():
        np.savetxt(folder / f"index_{name}.txt", rows)
    for split in (0, 1):
        np.savetxt(folder / f"index_train_{split}.txt", range(15))
        np.savetxt(folder / f"index_test_{split}.txt", range(15, 20))
    return TABLES


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "data").mkdir()
    for name in ("train", "test"):
        rows = "".join(f"{name} {i},{i % 2}\n" for i in range(30))
        (tmp_path / "data" / f"{name}.csv").write_text(f"text,label\n{rows}")
    return TEXTS


def refused(text, folder, capsys):
    """What is said of a study that is refused at once: one line, and nothing is made."""
    path = folder / "mine.toml"
    path.write_text(text)
    told = ["--data", str(folder / "data"), "--out", str(folder / "out")]
    with pytest.raises(SystemExit) as left:
        main(["study", "run", str(path), "--workers", "1", *told])
    printed = capsys.readouterr()
    assert left.value.code == 1
    assert not printed.out
    assert printed.err.count("\n") == 1
    assert not (folder / "out").exists()
    return printed.err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"random"]', '"randm"]', "by of cells 'laplace-randm' must be one of 'magnitude'"),
        ('"random"]', '"randm"]', "got 'randm'. Did you mean 'random'?"),
        ("37]", "370]", "percents of cells 'laplace-magnitude' must be a list of numbers"),
        ("37]", "370]", "in (0, 100], got [5, 370]."),
        ("[5, 37]", "[]", "percents of cells 'laplace-magnitude' must be a list"),
        ("[5, 37]", "5", "must be a list of numbers in (0, 100], got 5."),
        ("= 400 }\ncells.l", '= "400" }\ncells.l', "epochs of cells 'map' must be a whole"),
        ("= 400 }\ncells.l", '= "400" }\ncells.l', "number, 1 or more, got '400'."),
        ("= 400 }\ncells.l", "= 0 }\ncells.l", "a whole number, 1 or more, got 0."),
        ("= 400 }\ncells.l", "= true }\ncells.l", "1 or more, got True."),
        ("steps = 400", "trial_steps = 4", "cells 'swag': a low-rank posterior needs 3"),
        ("steps = 400", "rates = [0.1, -1]", "rates of cells 'swag' must be a list of num"),
        ("steps = 400", "samples = 1", "cells 'swag': samples must be 2 or more, got 1."),
        (
            "seeds = [0, 1]",
            'seeds = "01"',
            "seeds of 'mine' must be a list in which each value is a",
        ),
        ("seeds = [0, 1]", "seeds = 3", "whole number, 0 or more, got 3."),
        (
            "seeds = [0, 1]",
            "seeds = [0, 99]",
            "seeds must be splits of data 'Waves', got 9",
        ),
        ("seeds = [0, 1]", "seeds = [0, 99]", "no index_test_99.txt. It has 2 splits"),
        ('["magnitude", "random"]', '"random"', "must have a list of values for 'by', got"),
        (
            'baseline = "map"',
            'baseline = "mapp"',
            "baseline of 'mine' must be a method that",
        ),
        (
            'baseline = "map"',
            'baseline = "mapp"',
            "got 'mapp'. There are map, laplace-magnitude, laplace-random, swag-magnitude. "
            "Did you mean 'map'?",
        ),
        ('kind = "uci-map"', 'kind = "uci-mapp"', "Did you mean 'uci-map'?"),
    ],
)
def test_wrong_values_are_refused_before_any_cell(tables, old, new, said, tmp_path, capsys):
    assert tables.count(old) == 1
    assert said in refused(tables.replace(old, new), tmp_path, capsys)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("= 20", "= 28", "must hold 31 different texts for data 'tickets', got 30."),
        (
            "= 20",
            '= "20"',
            "train_size of data 'tickets' must be a whole number, 1 or more",
        ),
        ("train_size", "text = 'body'\ntrain_size", "body"),
    ],
)
def test_sizes_and_columns_are_those_of_the_files(texts, old, new, said, tmp_path, capsys):
    assert said in refused(texts.replace(old, new), tmp_path, capsys)


def test_resources_are_checked_alike(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TEXTS + "[resources]\nthreads = 0\n")
    with pytest.raises(ArgumentError, match=r"threads of \[resources\] must be a whole"):
        read_study(str(path))


@pytest.mark.parametrize("name", KINDS)
def test_what_kinds_take_by_themselves_is_what_they_may_be_told(name):
    module = find_kind(name)
    for kind in (module.Settings, module.Data):
        hints = type_hints(kind)
        for each in fields(kind):
            if each.default is not MISSING:
                assert fits(each.default, hints[each.name]), each.name


def test_types_are_read_as_people_say_them():
    cases = [
        (3, float, True),
        (True, float, False),
        (True, int, False),
        (2.0, int, False),
        (None, Count | None, True),
        (0, Count | None, False),
        ((), Fractions, False),
        ((0.5, 1), Fractions, True),
        ({"a": "b"}, Mapping[str, str], True),
        ({"a": 1}, Mapping[str, str], False),
        ("a", Literal["a", "b"], True),
        (["a"], Literal["a", "b"], False),
        (object(), complex, True),
        (("b", 2), tuple[str, int], True),
        (1, Draws, False),
        (0, Draws, True),
    ]
    for value, hint, good in cases:
        assert fits(value, hint) is good, (value, hint)
    assert describe_type(Count | None) == "a whole number, 1 or more"
    assert describe_type(str | int) == "a text or a whole number"
    assert describe_type(tuple[float, ...]) == "a list in which each value is a number"


def test_a_kind_of_ones_own_may_have_types_that_nobody_finds():
    @dataclass(frozen=True)
    class Settings:
        size: NotThere = 1  # noqa: F821

    assert read_settings(Settings, {"size": "large"}, "cells 'own'").size == "large"


def test_a_network_is_pruned_to_fewer_weights_than_it_has():
    data = {"name": "images", "train": "a", "test": "b"}
    cell = Cell("ssvi", "sparse-training", data, 0, {"density": 0.1, "pruned": [0.05]})
    check_cell(cell)
    with pytest.raises(ArgumentError, match="cells 'ssvi': pruned must be at most density"):
        check_cell(replace(cell, settings={"density": 0.1, "pruned": [0.05, 0.2]}))


def test_options_of_swag_are_refused_where_they_are_told():
    with pytest.raises(ArgumentError, match="3 snapshots or more, and trial_steps=10"):
        SwagOptions(trial_steps=10)
    # One rate is not tried.
    SwagOptions(rates=(0.01,), trial_steps=10)


def test_a_report_compares_with_no_other_than_the_baseline(tmp_path, capsys):
    mine = tmp_path / "mine.toml"
    text = study_text("uci")
    kept = [
        "--out",
        str(ROOT / "results"),
        "--page",
        str(tmp_path / "page.html"),
        "--overwrite",
    ]

    def reported(baseline):
        mine.write_text(text.replace('baseline = "map"', f'baseline = "{baseline}"'))
        with pytest.raises(SystemExit) as left:
            main(["study", "report", str(mine), *kept])
        return left.value.code, capsys.readouterr().err

    code, said = reported("mapp")
    assert code == 1
    assert "got 'mapp'. There are map, laplace-magnitude," in said
    assert not (tmp_path / "page.html").exists()
    code, said = reported("laplace-random")
    assert code == 0
    assert all("of an earlier protocol" in line for line in said.splitlines())


def test_a_baseline_whose_cells_are_not_done_yet_is_missed(tmp_path, capsys):
    study, kept = read_study("uci"), Ledger(ROOT / "results")
    some = [cell for cell in study.cells if cell.name != "map"][:2]
    for cell in some:
        kept.record(cell).save(Ledger(tmp_path).record_path(cell))
    with pytest.raises(SystemExit) as left:
        main(["study", "report", "uci", "--out", str(tmp_path)])
    assert left.value.code == 0
    assert "the baseline 'map' is in no record yet" in capsys.readouterr().err


def test_kinds_foresee_the_methods_of_their_records():
    seen, ledger = {}, Ledger(ROOT / "results")
    for name in shipped_studies():
        for cell in read_study(name).cells:
            if ledger.is_done(cell):
                seen.setdefault((cell.kind, json.dumps(cell.settings)), cell)
    # Two have records of an earlier script, which belong to no cell.
    without = {"recipe", "weight-samples"}
    without |= {kind for kind in KINDS if kind.startswith("answers-")}
    assert {kind for kind, _ in seen} == KINDS.keys() - without
    for cell in seen.values():
        methods = ledger.record(cell).results.get("methods", ())
        assert sorted(each["name"] for each in methods) == sorted(cell.reported_methods)
