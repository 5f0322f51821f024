"""What `smidgen study` prints: a study's own file, and where records were looked for."""

from __future__ import annotations

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from smidgen.cli import main
from smidgen.errors import how_to_install
from smidgen.runtime.record import Record
from smidgen_studies.engine.ledger import Ledger
from smidgen_studies.engine.study import list_profiles, read_study, shipped_studies

ROOT = Path(__file__).parents[3]


def ended(*words):
    with pytest.raises(SystemExit) as left:
        main(["study", *words])
    return left.value.code


def nothing(folder):
    """A study of one cell, of a kind of the tests' own."""
    path = folder / "nothing.toml"
    path.write_text(
        '[[data]]\nname = "one"\n[[cells]]\nname = "base"\n'
        'kind = "tests.support.study_kinds"\n'
        f'diary = "{folder / "diary"}"\n[profiles.small]\nseeds = [0]\n'
    )
    return path


def said(stream):
    return " ".join(stream.split())


@pytest.mark.parametrize("name", shipped_studies())
def test_what_is_shown_is_the_study_to_the_letter(name, tmp_path, capsys):
    assert ended("show", name) == 0
    printed = capsys.readouterr()
    assert not printed.err
    mine = tmp_path / "mine.toml"
    mine.write_text(printed.out, encoding="utf-8")
    assert list(list_profiles(str(mine))) == list(list_profiles(name))
    for profile in list_profiles(name):
        ours, theirs = read_study(str(mine), profile), read_study(name, profile)
        assert [cell.key for cell in ours.cells] == [cell.key for cell in theirs.cells]
        assert ours.paper == theirs.paper
    # A path is shown as a name is.
    assert ended("show", str(mine)) == 0
    assert capsys.readouterr().out == printed.out


@pytest.mark.parametrize("name", ["glue-table2", "glue-ramp"])
def test_the_papers_protocol_is_of_the_papers_model(name):
    for profile, base in (("small", None), ("full", "distilbert-base-uncased")):
        tuned = [c for c in read_study(name, profile).cells if c.kind == "finetune"]
        assert {cell.settings.get("base") for cell in tuned} == {base}


def test_a_name_that_cannot_be_shown_is_refused_as_run_refuses_it(capsys):
    for command in ("show", "run"):
        assert ended(command, "glue-tabel2") == 1
        printed = capsys.readouterr()
        assert not printed.out
        line = said(printed.err)
        assert "NAME must be one of" in line
        assert all(name in line for name in shipped_studies())
        assert line.endswith("got 'glue-tabel2'. Did you mean 'glue-table2'?")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ucy", "got 'ucy'. Did you mean 'uci'?"),
        ("nofile.toml", "got 'nofile.toml', a file that is not there."),
        ("some/where", "got 'some/where', a file that is not there."),
        ("uci.toml", "'uci.toml', a file that is not there. Did you mean 'uci'?"),
        ("whatever", "got 'whatever'."),
    ],
)
def test_a_name_that_is_nobodys_is_told_from_a_file_that_is_not_there(name, told, capsys):
    assert ended("status", name) == 1
    advice = "" if told.endswith("?") else " Run 'smidgen study list' to see them."
    assert said(capsys.readouterr().err).endswith(told + advice)


def test_a_folder_of_data_that_is_not_there_is_said_to_be_missing(tmp_path, capsys):
    out = ("--out", str(tmp_path / "out"))
    assert ended("run", "uci", "--data", str(tmp_path / "nowhere"), *out) == 1
    told = said(capsys.readouterr().err)
    assert f"--data must be a folder that exists, got '{tmp_path / 'nowhere'}'." in told


def test_an_engine_that_is_not_installed_is_refused_first(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *rest, find=find_spec: None if name == "ray" else find(name, *rest),
    )
    out = ("--out", str(tmp_path / "out"), "--engine", "ray")
    assert ended("run", str(nothing(tmp_path)), *out) == 1
    printed = capsys.readouterr()
    assert not printed.out
    assert "--engine ray needs Ray, which is not installed" in said(printed.err)


def test_an_interrupted_study_says_how_much_is_done(tmp_path, capsys, monkeypatch):
    def interrupted(missing, ledger, engine, *, on_end):
        engine.close()
        raise KeyboardInterrupt

    monkeypatch.setattr("smidgen_studies.engine.run.run_cells", interrupted)
    out = ("--out", str(tmp_path / "out"), "--workers", "1")
    assert ended("run", str(nothing(tmp_path)), *out) == 130
    printed = capsys.readouterr()
    assert "1 cell to do" in printed.out
    told = "interrupted. 0 of 1 cells done, records in"
    assert told in said(printed.err)
    assert "the same command continues with the others." in said(printed.err)
    assert "checkpoint" not in printed.err


def test_without_records_report_and_status_say_where_they_looked(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for words, code in ((("report", "uci"), 1), (("status", "uci"), 0)):
        assert ended(*words) == code
        line = said(capsys.readouterr().err)
        assert "no records of 'uci', profile small, in runs/uci-small." in line
        assert "Pass --out FOLDER" in line
        assert "smidgen study run uci --profile small --data FOLDER." in line
    assert ended("report", "uci", "--out", "elsewhere", "--profile", "full") == 1
    line = said(capsys.readouterr().err)
    assert "'uci', profile full, in elsewhere." in line
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("uci", 405),
        ("bridges", 765),
        ("ssvi", 133),
        ("bayestune", 320),
        ("glue-ramp", 12),
        ("glue-table2", 84),
    ],
)
def test_no_cell_of_a_study_in_results_is_missing(name, count, capsys):
    assert ended("status", name, "--out", str(ROOT / "results")) == 0
    printed = capsys.readouterr()
    assert printed.out.split()[-5:] == ["all", str(count), "0", "0", "0"]
    assert all("of an earlier protocol" in line for line in printed.err.splitlines())


def test_a_page_is_made_of_packed_records_too(tmp_path):
    page = tmp_path / "page.html"
    with pytest.raises(SystemExit) as leaving:
        main(["report", str(ROOT / "results" / "uci.jsonl.gz"), "--out", str(page)])
    assert leaving.value.code == 0
    assert "Yacht" in page.read_text()


def test_a_report_writes_over_no_file_that_was_named(tmp_path, capsys):
    command = ("report", "uci", "--out", str(ROOT / "results"))
    kept = {name: tmp_path / f"kept.{name}" for name in ("page", "json")}
    for name, file in kept.items():
        file.write_text("mine")
        assert ended(*command, f"--{name}", str(file)) == 1
        assert f"{file.name} exists already" in said(capsys.readouterr().err)
        assert file.read_text() == "mine"
    named = [word for n, file in kept.items() for word in (f"--{n}", str(file))]
    assert ended(*command, *named, "--overwrite") == 0
    assert all(file.read_text() != "mine" for file in kept.values())


def test_the_demo_writes_over_no_record_that_was_named(tmp_path, capsys):
    file = tmp_path / "record.json"
    file.write_text("mine")
    words = ["demo", "--json", str(file), "--out", str(tmp_path / "demo")]
    with pytest.raises(SystemExit) as leaving:
        main(words)
    assert leaving.value.code == 1
    assert "record.json exists already" in said(capsys.readouterr().err)
    assert file.read_text() == "mine"


def test_failed_cells_are_summed_up_by_their_reasons(tmp_path, capsys):
    study, ledger = read_study("uci"), Ledger(tmp_path)
    out = ("--out", str(tmp_path))
    for number, cell in enumerate(study.cells[:20]):
        ledger.note_failure(
            cell, "the tables are empty." if number < 13 else f"why {number}."
        )
    assert ended("status", "uci", *out) == 0
    first, *others, last = capsys.readouterr().err.splitlines()
    said = "13 cells, the first Boston, seed 0, map, failed: the tables are empty."
    assert first == f"note: {said}"
    assert len(others) == 4
    assert others[0].startswith(
        "note: 1 cell Energy, seed 0, laplace-full, failed: why 13."
    )
    assert last == f"note: 3 other reasons and all tracebacks are in {tmp_path / 'failed'}."


@pytest.mark.parametrize("extra", ["ray", "demo", "hf"])
def test_what_is_missing_is_installed_from_a_checkout(extra):
    told = how_to_install(extra)
    assert told == f'pip install "smidgen[{extra}]"'
    assert (
        extra
        in tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
            "optional-dependencies"
        ]
    )


def test_nobody_is_told_to_install_a_release_that_is_not_there():
    places = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    told = re.compile(r"smidgen\[\w+\]")
    found = [p for p in [*places, ROOT / "README.md"] if told.search(p.read_text("utf-8"))]
    assert not found


def test_records_laid_out_otherwise_are_refused_in_words(tmp_path, capsys):
    path = nothing(tmp_path)
    (cell,) = read_study(str(path)).cells
    record = Record("cell", {"title": "own", "key": cell.key}, {"methods": {"mine": 1}})
    record.save(Ledger(tmp_path / "out").record_path(cell))
    assert ended("report", str(path), "--out", str(tmp_path / "out")) == 1
    assert "at least one method scored on test data" in said(capsys.readouterr().err)
