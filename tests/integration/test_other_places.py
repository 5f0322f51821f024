"""Commands work in other locales, with other encodings, and under names of all kinds."""

from __future__ import annotations

import json
import locale
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import smidgen
from smidgen.cli.console import note, spell_what_is_missing
from smidgen.errors import StoreError
from smidgen.runtime.writing import writable
from smidgen.runtime.writing.writable import require_writable

ROOT = Path(__file__).parents[2]
RUN = "from smidgen.cli import main; main()"
ODD_NAMES = ("two words", "Prüfung", "проверка", "試験", "it's (1) & more", "a-ü [x]{y}")
OLD_ENCODING = {"PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii:strict"}


def run(*words, **variables):
    sources = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": sources, "COLUMNS": "200", **variables}
    return subprocess.run(
        [sys.executable, "-c", RUN, *map(str, words)],
        env=environment,
        capture_output=True,
        check=False,
    )


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A record with names that no code page has all of."""
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    batches = [(part, (part[:, 0] > 0).long()) for part in x.split(20)]
    model = torch.nn.Linear(4, 2)
    posterior = smidgen.fit.laplace(
        model, batches, smidgen.select.last_layer(model), progress=False
    )
    path = tmp_path_factory.mktemp("ein Ordner – с именем") / "Ergebnis ü.json"
    smidgen.compare(model, posterior, batches).save(path)
    return path


@pytest.mark.parametrize(
    "variables",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"LC_ALL": "C"},
        {"LC_ALL": "C.UTF-8"},
        OLD_ENCODING,
        {**OLD_ENCODING, "PYTHONIOENCODING": "cp1252:strict"},
        {**OLD_ENCODING, "PYTHONIOENCODING": "cp437:strict"},
    ],
    ids=lambda variables: " ".join(f"{n}={v}" for n, v in variables.items()),
)
@pytest.mark.parametrize(
    "words", [("--help",), ("verify", "--help"), ("study", "show", "uci")]
)
def test_commands_print_in_any_locale(words, variables):
    done = run(*words, **variables)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout) > 200


def test_doctor_prints_and_warns_where_the_terminal_is_old():
    done = run("doctor", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"-> Set PYTHONUTF8=1 to see and name every character" in done.stdout


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_a_report_is_made_whatever_the_terminal_shows(record, tmp_path, encoding):
    pages = []
    for variables in ({}, {**OLD_ENCODING, "PYTHONIOENCODING": f"{encoding}:strict"}):
        pages.append(tmp_path / f"Seite {len(pages)}.html")
        words = ("report", record, "--out", pages[-1])
        # The names of files are UTF-8 here, whatever the terminal is.
        done = run(*words, **{**variables, "PYTHONUTF8": "1"})
        assert done.returncode == 0, done.stderr
    # Files hold every character.
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_a_name_the_locale_cannot_read_is_told_from_one_that_is_no_text(record):
    done = run("report", record, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    said = done.stderr.decode("ascii")
    assert done.returncode == 2
    assert said.startswith("smidgen: the encoding of names must be utf-8 for ")
    assert "Set PYTHONUTF8=1" in said
    assert said.count("\n") == 1


def test_what_a_terminal_lacks_is_spelled(monkeypatch, tmp_path):
    path = tmp_path / "terminal"
    with path.open("w", encoding="ascii") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        spell_what_is_missing()
        note("3 × 4 ≤ 12 … “done” – Zürich • 試")
        terminal.flush()
    monkeypatch.undo()
    shown = path.read_text(encoding="ascii")
    assert shown == 'note: 3 x 4 <= 12 ... "done" - Z\\xfcrich * \\u8a66\n'


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_work_from_end_to_end(record, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    page, verdict = folder / f"{name}.html", folder / f"{name}.json"
    done = run("report", record, "--out", page, "--json", verdict, LC_ALL="C.UTF-8")
    assert done.returncode == 0, done.stderr
    assert page.read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert json.loads(verdict.read_text(encoding="utf-8"))["page"] == str(page)
    model = torch.nn.Linear(3, 2)
    batch = (torch.randn(8, 3), torch.randint(2, (8,)))
    chosen = smidgen.select.last_layer(model)
    posterior = smidgen.fit.laplace(model, [batch], chosen, progress=False)
    loaded = smidgen.load(smidgen.save(posterior, folder / f"{name} 1"), model=model)
    one, two = (smidgen.predict(p, model, batch).probs for p in (posterior, loaded))
    assert torch.equal(one, two)


def test_a_decimal_comma_changes_nothing(record, tmp_path):
    """Numbers in files and on pages have a point wherever they are written."""
    commas = None
    for name in ("de_DE.UTF-8", "fr_FR.UTF-8", "nl_NL.UTF-8"):
        try:
            locale.setlocale(locale.LC_ALL, name)
            commas = name
            break
        except locale.Error:
            continue
    if commas is None:
        pytest.skip("no locale with a decimal comma here")
    try:
        point = smidgen.Record.load(record)
        point.save(tmp_path / "again.json")
        point_page = smidgen.report.write(point, tmp_path / "page.html")
    finally:
        locale.setlocale(locale.LC_ALL, "C")
    assert (tmp_path / "again.json").read_bytes() == record.read_bytes()
    smidgen.report.write(smidgen.Record.load(record), tmp_path / "plain.html")
    assert point_page.read_bytes() == (tmp_path / "plain.html").read_bytes()


@pytest.mark.parametrize(
    "name",
    ["con", "NUL.txt", "aux.tar.gz", "com1", "lpt9.json", "a:b", "what?", "a*", "<a>"]
    + ["a|b", 'say "a"', "ends.", "ends ", "a\tb", "con/posterior"],
)
def test_names_that_windows_keeps_are_refused_there(monkeypatch, tmp_path, name):
    require_writable(tmp_path / name, "--out", folder=True)
    monkeypatch.setattr(writable, "on_windows", lambda: True)
    with pytest.raises(StoreError, match=r"--out must have names that Windows allows, got"):
        require_writable(tmp_path / name, "--out", folder=True)


@pytest.mark.parametrize(
    "name", ["console", "nullable", "com", "a.b", ".hidden", "..", "ü"]
)
def test_other_names_are_allowed_there(monkeypatch, tmp_path, name):
    monkeypatch.setattr(writable, "on_windows", lambda: True)
    require_writable(tmp_path / "a" / name / "out", "--out", folder=True)


def test_no_file_of_ours_has_a_name_that_windows_lacks(monkeypatch):
    monkeypatch.setattr(writable, "on_windows", lambda: True)
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False
    )
    if listed.returncode:
        pytest.skip("no checkout")
    names = listed.stdout.decode("utf-8").split("\0")[:-1]
    for name in names:
        require_writable(Path(name), "name")
    # Nor two that differ in case alone.
    assert len({name.lower() for name in names}) == len(names)
