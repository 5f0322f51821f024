"""Studies: what their files mean, which cells are missing, and that none is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from smidgen.cli import main
from smidgen.errors import ArgumentError, DataError
from smidgen.runtime.packed_records import unpack_records
from smidgen_studies.engine.cell import Cell
from smidgen_studies.engine.data_files import require_files
from smidgen_studies.engine.ledger import Ledger, read_state
from smidgen_studies.engine.run import check_cell, check_study, missing_cells, run_cells
from smidgen_studies.engine.study import (
    Resources,
    list_profiles,
    read_study,
    shipped_studies,
)
from smidgen_studies.engine.workers.base import Workspace
from smidgen_studies.engine.workers.local import LocalEngine, room_for
from smidgen_studies.kinds import KINDS
from tests.support import study_kinds

ROOT = Path(__file__).parents[4]
FILE = """
title = "A study of nothing"
[[data]]
name = "one"
[[data]]
name = "two"
size = 3
[[cells]]
name = "base"
kind = "tests.support.study_kinds"
diary = "{diary}"
leaves = true
seconds = {seconds}
[[cells]]
name = "leaf"
kind = "tests.support.study_kinds"
needs = ["base"]
diary = "{diary}"
fails_without = "{wanted}"
each = {{ seconds = [{seconds}, {longer}] }}
[profiles.small]
seeds = [0, 1]
[profiles.full]
about = "more"
seeds = [0, 1, 2]
data.two.size = 5
cells.leaf.only = ["one"]
"""


@pytest.fixture
def file(tmp_path):
    return written(tmp_path)


def written(folder, *, seconds=0.0, wanted=""):
    path = folder / "nothing.toml"
    told = {"diary": folder / "diary", "seconds": seconds, "longer": seconds + 0.01}
    path.write_text(FILE.format(**told, wanted=wanted))
    return path


def run(path, folder, workers=2, **changes):
    study, ledger = read_study(str(path)), Ledger(folder)
    engine = LocalEngine(Workspace(folder), Resources(), workers)
    missing = check_study(study, ledger, None)
    return study, ledger, run_cells(missing, ledger, engine, **changes)


def noted(folder, word):
    """How often each cell was started, or ended, by the diary that cells keep."""
    lines = [line.split() for line in (folder / "diary").read_text().splitlines()]
    return Counter(slug for _, what, slug in lines if what == word)


def test_a_file_makes_cells_of_data_seeds_and_values(file):
    study = read_study(str(file))
    assert (study.name, study.profile, len(study.cells)) == ("nothing", "small", 12)
    leaf = study.cells[1]
    assert [each.name for each in leaf.needs] == ["base"]
    assert leaf.needs[0].seed == leaf.seed
    assert leaf.settings["seconds"] == 0.0
    full = read_study(str(file), "full")
    assert len(full.cells) == 3 * (1 + 2) + 3
    assert {c.data["size"] for c in full.cells if c.data["name"] == "two"} == {5}
    assert list_profiles(str(file)) == {"small": "", "full": "more"}


def test_cells_of_one_seed_serve_all_seeds(file):
    text = file.read_text().replace("leaves = true", "leaves = true\nseed = 7")
    file.write_text(text)
    study = read_study(str(file))
    bases = [cell for cell in study.cells if cell.name == "base"]
    assert [(cell.data["name"], cell.seed) for cell in bases] == [("one", 7), ("two", 7)]
    leaves = [cell for cell in study.cells if cell.name != "base"]
    assert {cell.seed for cell in leaves} == {0, 1}
    assert {cell.needs[0].key for cell in leaves} == {cell.key for cell in bases}


def test_records_of_other_data_are_not_gone_on_from(tmp_path, capsys):
    path = written(tmp_path)
    text = path.read_text().replace("size = 3", 'size = 3\ntrain = "rows.csv"')
    path.write_text(text)
    rows = tmp_path / "rows.csv"
    rows.write_text("1,2\n")
    (tmp_path / "two").mkdir()
    told = ["study", "run", str(path), "--data", str(tmp_path), "--workers", "1"]
    told += ["--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as left:
        main(told)
    assert left.value.code == 0
    found = list(unpack_records(tmp_path / "out" / "nothing.jsonl.gz").values())
    named = [list(each.config["files"]) for each in found]
    assert sorted(named) == [[]] * 6 + [["rows.csv"]] * 6
    # A folder that happens to have a data set's name is none of its files.
    (tmp_path / "two" / "more.csv").write_text("1\n")
    with pytest.raises(SystemExit) as left:
        main(told)
    assert left.value.code == 0
    rows.write_text("1,3\n")
    with pytest.raises(SystemExit) as left:
        main(told)
    assert left.value.code == 1
    assert "rows.csv under --data must be what it was" in capsys.readouterr().err


def test_a_folder_without_the_data_is_refused_before_any_cell(tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["study", "run", "uci", "--data", str(tmp_path), "--out", str(tmp_path / "o")])
    assert left.value.code == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "data 'Boston' must have 'bostonHousing' to be read from" in said
    assert f"nothing at {tmp_path / 'bostonHousing'}." in said
    assert not (tmp_path / "o").exists()


def test_data_that_need_a_folder_are_refused_without_one(tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["study", "run", "uci", "--out", str(tmp_path / "o")])
    assert left.value.code == 1
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.count("\n") == 1
    assert "data 'Boston' must have a folder to be read from, got none" in printed.err
    assert "Pass --data FOLDER." in printed.err
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("home", [False, True])
def test_files_with_a_path_of_their_own_need_no_folder(home, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("train", "test"):
        rows = "".join(f"{name} {i},{i % 2}\n" for i in range(20))
        (tmp_path / f"{name}.csv").write_text(f"text,label\n{rows}")
    place = "~" if home else tmp_path
    data = {"name": "own", "train": f"{place}/train.csv", "test": f"{place}/test.csv"}
    cell = Cell("map", "finetune", data, 0)
    for root in (None, tmp_path / "elsewhere"):
        require_files([cell], root)
    lost = replace(cell, data={**data, "test": f"{place}/lost.csv"})
    with pytest.raises(DataError, match="nothing at .*lost.csv"):
        require_files([lost], None)


def test_records_of_other_defaults_are_not_gone_on_from(
    tmp_path, file, monkeypatch, capsys
):
    told = ["study", "run", str(file), "--workers", "1", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as left:
        main(told)
    assert left.value.code == 0
    found = list(unpack_records(tmp_path / "out" / "nothing.jsonl.gz").values())
    assert {each.config["defaults"]["dies_without"] for each in found} == {""}
    assert not any("seconds" in each.config["defaults"] for each in found)

    @dataclass(frozen=True)
    class Other(study_kinds.Settings):
        dies_without: str = "fate"

    monkeypatch.setattr(study_kinds, "Settings", Other)
    with pytest.raises(SystemExit) as left:
        main(told)
    assert left.value.code == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "dies_without of the cells 'base' was '' when" in said
    assert "would be 'fate' now" in said


def test_keys_are_of_what_shapes_the_result_and_of_nothing_else(file):
    study = read_study(str(file))
    assert len({cell.key for cell in study.cells}) == len(study.cells)
    again = read_study(str(file))
    assert [a.key for a in study.cells] == [b.key for b in again.cells]
    file.write_text(file.read_text().replace('"base"', '"root"'))
    renamed = read_study(str(file))
    assert [a.key for a in study.cells] == [b.key for b in renamed.cells]
    file.write_text(file.read_text().replace("leaves = true", "leaves = false"))
    changed = read_study(str(file))
    # What needs a changed cell has changed too.
    assert not {a.key for a in study.cells} & {b.key for b in changed.cells}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title", "titel", "unknown part, 'titel'"),
        ('needs = ["base"]', 'needs = ["bass"]', "stand above them"),
        ('name = "two"', 'name = "one"', "a name of its own"),
        ("seeds = [0, 1]", "seeds = []", "seeds"),
        ("cells.leaf.only", "cells.twig.only", "'twig', which is not there"),
        ("title =", "title", "must be TOML"),
    ],
)
def test_files_that_mean_nothing_are_refused(file, old, new, message):
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(ArgumentError, match=message):
        read_study(str(file), "full" if "twig" in new else None)


def test_unknown_names_are_refused(file):
    with pytest.raises(ArgumentError, match="glue-table2"):
        read_study("glue-tabel2")
    with pytest.raises(ArgumentError, match="one of small, full"):
        read_study(str(file), "tiny")
    file.write_text(file.read_text().replace("leaves", "leave"))
    with pytest.raises(ArgumentError, match="no setting 'leave'"):
        check_cell(read_study(str(file)).cells[0])


@pytest.mark.parametrize("name", shipped_studies())
def test_shipped_studies_can_be_read_and_their_settings_are_known(name):
    for profile in list_profiles(name):
        study = read_study(name, profile)
        for cell in {(c.kind, c.name): c for c in study.cells}.values():
            check_cell(cell)


def test_every_kind_refuses_data_that_say_what_it_does_not_know():
    cells = {
        cell.kind: cell for name in shipped_studies() for cell in read_study(name).cells
    }
    assert cells.keys() == KINDS.keys()
    for cell in cells.values():
        misspelt = replace(cell, data={**cell.data, "train_sise": 3})
        with pytest.raises(ArgumentError, match="no setting 'train_sise'"):
            check_cell(misspelt)


def test_a_kind_without_all_its_parts_is_refused(file, monkeypatch):
    monkeypatch.delattr(study_kinds, "Data")
    with pytest.raises(ArgumentError, match=r"Settings, Data and run\(job\), got no Data"):
        check_cell(read_study(str(file)).cells[0])


def test_the_keys_of_every_data_set_are_checked_before_any_cell(file, tmp_path):
    file.write_text(file.read_text().replace('name = "one"', 'name = "one"\nsise = 3'))
    study, ledger = read_study(str(file)), Ledger(tmp_path / "out")
    with pytest.raises(ArgumentError, match="data 'one' has no setting 'sise'"):
        check_study(study, ledger, None)
    assert not (tmp_path / "diary").exists()


@pytest.mark.slow
def test_every_cell_is_done_once_and_needs_come_first(file, tmp_path):
    study, ledger, finished = run(file, tmp_path / "out")
    assert len(finished.done) == 12
    assert not finished.failed
    once = {cell.slug: 1 for cell in study.cells}
    assert noted(tmp_path, "start") == noted(tmp_path, "end") == once
    for cell in study.cells:
        record = ledger.record(cell)
        assert record.kind == "cell"
        assert record.config["key"] == cell.key
        own = f"{cell.data['name']} {cell.seed}"
        assert record.results["found"] == ([own] if cell.needs else [])
    assert not missing_cells(study, ledger)
    assert not any((tmp_path / "out" / "work").iterdir())
    run(file, tmp_path / "out")
    assert noted(tmp_path, "start") == once


@pytest.mark.slow
def test_failed_cells_stop_no_others_and_are_tried_again(tmp_path):
    wanted = tmp_path / "wanted"
    path = written(tmp_path, wanted=wanted)
    study, ledger, finished = run(path, tmp_path / "out")
    assert (len(finished.done), len(finished.failed)) == (4, 8)
    state = read_state(study.cells, ledger)
    assert (len(state.done), len(state.failed), len(state.left)) == (4, 8, 0)
    failure = ledger.failure(state.failed[0])
    assert failure["error"] == "ValueError('not yet')"
    assert failure["tries"] == 1
    assert "study_kinds.py" in failure["trace"]
    with pytest.raises(SystemExit) as left:
        main(["study", "run", str(path), "--out", str(tmp_path / "out"), "--workers", "2"])
    assert left.value.code == 1
    assert ledger.failure(state.failed[0])["tries"] == 2
    wanted.touch()
    _, _, finished = run(path, tmp_path / "out")
    assert (len(finished.done), len(finished.failed)) == (8, 0)
    assert not read_state(study.cells, ledger).failed


@pytest.mark.slow
def test_a_cell_whose_worker_was_killed_is_tried_once_more(tmp_path):
    path = written(tmp_path)
    died = tmp_path / "died"
    text = path.read_text().replace(
        "leaves = true", f'leaves = true\ndies_without = "{died}"'
    )
    path.write_text(text)
    _, _, finished = run(path, tmp_path / "out", workers=1)
    assert len(finished.done) == 12
    assert died.exists()


@pytest.mark.slow
def test_what_another_run_is_at_comes_last(file, tmp_path):
    study, ledger = read_study(str(file)), Ledger(tmp_path / "out")
    theirs = study.cells[0]
    told = []
    with ExitStack() as stack:
        stack.enter_context(ledger.lock(theirs))
        # They are done when all but their cell and its two leaves are, or never.
        late = threading.Timer(60, stack.close)
        late.start()

        def tell(cell, error):
            told.append(cell.key)
            if len(told) == 9:
                stack.close()

        run(file, tmp_path / "out", workers=1, on_end=tell)
        late.cancel()
    assert told.index(theirs.key) == 9
    assert len(told) == 12


@pytest.mark.slow
def test_what_a_lost_artifact_is_needed_for_makes_it_again(file, tmp_path):
    study, ledger, _ = run(file, tmp_path / "out")
    base, leaf = study.cells[:2]
    (ledger.artifact(base) / "left.txt").unlink()
    ledger.artifact(base).rmdir()
    assert not missing_cells(study, ledger)
    ledger.record_path(leaf).unlink()
    assert [each.name for each in missing_cells(study, ledger)] == [base.name, leaf.name]
    run(file, tmp_path / "out")
    assert ledger.can_be_used(leaf)
    assert ledger.can_be_used(base)


def started(path, folder):
    words = ["study", "run", str(path), "--out", str(folder), "--workers", "2"]
    code = f"from smidgen.cli import main; main({words!r})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def alive(pid):
    try:
        # A zombie that its new parent has not read yet is dead.
        return (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8")
            .rsplit(")", 1)[1]
            .split()[0]
            != "Z"
        )
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_a_killed_study_goes_on_and_repeats_nothing(tmp_path):
    path, folder = written(tmp_path, seconds=0.3), tmp_path / "out"
    diary = tmp_path / "diary"
    study, ledger = read_study(str(path)), Ledger(folder)
    kept, starts = {}, {}
    for wanted in (2, 7):
        deadline = time.monotonic() + 300
        with started(path, folder) as process:
            while len(read_state(study.cells, ledger).done) < wanted:
                assert time.monotonic() < deadline
                assert process.poll() is None, process.stdout.read()
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
        # Its workers end with it, and what they were doing is nobody's any more.
        workers = {int(each.split()[0]) for each in diary.read_text().splitlines()}
        while any(alive(pid) for pid in workers):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        state = read_state(study.cells, ledger)
        assert not state.running
        assert not state.failed
        now = noted(tmp_path, "start")
        for cell in state.done:
            kept.setdefault(cell.slug, ledger.record(cell))
            starts.setdefault(cell.slug, now[cell.slug])
    assert len(kept) >= 7
    with started(path, folder) as process:
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert len(read_state(study.cells, ledger).done) == 12
    # What had a record when the program was killed has not been started since.
    in_all = noted(tmp_path, "start")
    assert len(in_all) == 12
    assert {slug: in_all[slug] for slug in starts} == starts
    # A study whose cells are all done has its records in one file.
    records = unpack_records(ledger.pack_path(study.name))
    assert len(records) == 12
    assert {slug: records[slug] for slug in kept} == kept
    assert not list((folder / "records").iterdir())


def test_status_and_list_tell_where_a_study_stands(file, tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["study", "status", str(file), "--out", str(tmp_path / "out")])
    assert left.value.code == 0
    assert capsys.readouterr().out.split()[-5:] == ["all", "0", "0", "0", "12"]
    with pytest.raises(SystemExit):
        main(["study", "list"])
    said = capsys.readouterr().out
    assert all(name in said for name in shipped_studies())
    with pytest.raises(SystemExit) as left:
        main(["study", "run", str(file), "--data", str(tmp_path / "no")])
    assert left.value.code == 1
    assert "--data must be a folder" in capsys.readouterr().err


def test_workers_follow_cores_and_memory(monkeypatch):
    monkeypatch.setenv("SMIDGEN_MEMORY", "5e9")
    assert room_for(Resources(threads=1, memory=4e9)) == 1
    assert room_for(Resources(threads=1, memory=9e9)) == 1
    cores = len(os.sched_getaffinity(0))
    assert room_for(Resources(threads=1, memory=1)) == cores
    assert room_for(Resources(threads=cores, memory=1)) == 1
