"""What a command writes is checked before its work: no model is here, and no data to read."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer

from smidgen.cli.app import _load_command
from smidgen.cli.options.outputs import _list_inputs
from smidgen.runtime.memory import format_bytes
from tests.faults.works import TEXTS, make_world
from tests.integration.test_cli import run

FILE = __file__
DATA = f"--train {FILE} --val {FILE}"
COMMANDS = {
    "finetune": (f"finetune no {DATA} --out made", ["json", "out"]),
    "fit": (f"fit no {DATA} --out made", ["json", "out"]),
    "bayestune": (f"bayestune no {DATA} --out made", ["json", "out", "checkpoint"]),
    "ramp": (f"ramp no {DATA} --test {FILE} --out made", ["json", "out"]),
    "train-sparse": (
        f"train-sparse --train {FILE} --out made",
        ["json", "out", "picture", "checkpoint"],
    ),
    "evaluate": (f"evaluate no no --test {FILE}", ["json", "report"]),
    "predict": (f"predict no no --data {FILE}", ["json"]),
    "plan": ("plan no", ["json"]),
    "verify": (f"verify no --data {FILE}", ["json"]),
    "report": ("report no.json", ["json", "out"]),
    "demo": ("demo", ["json", "out"]),
    "study run": ("study run uci", ["out"]),
    "study report": ("study report uci", ["json", "page"]),
}
OPTIONS = [(name, option) for name, (_, options) in COMMANDS.items() for option in options]
# Where folders are written, and not files.
FOLDERS = {
    *((name, "out") for name in COMMANDS if name != "report"),
    ("bayestune", "checkpoint"),
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys, name, option, value):
    """Run a command whose option cannot be written; its words, on one line."""
    words = COMMANDS[name][0].split()
    if f"--{option}" in words:
        words[words.index(f"--{option}") + 1] = value
    else:
        words += [f"--{option}", value]
    assert run(*words) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("smidgen: ")
    assert f"--{option} must " in said
    return said


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_an_output_that_cannot_be_written_is_refused_first(capsys, place, name, option):
    (place / "file").touch()
    for value in ("file/new", "/proc/new", "y/" + "x" * 300 + "/z"):
        said = refused(capsys, name, option, value)
        # A long name is cut.
        assert value[:30] in said or "x" * 40 in said
    if (name, option) in FOLDERS:
        assert "the file" in refused(capsys, name, option, "file")
    else:
        assert "the folder" in refused(capsys, name, option, ".")
        assert "the device" in refused(capsys, name, option, "/dev/full")
    assert [path.name for path in place.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("name", "option"), [pair for pair in OPTIONS if pair not in FOLDERS]
)
def test_a_file_that_exists_is_refused_first(capsys, place, name, option):
    if option == "checkpoint":
        pytest.skip("one that exists is resumed from")
    (place / "there").write_text("mine")
    assert run(*COMMANDS[name][0].split(), f"--{option}", "there") == 1
    assert "there exists already" in capsys.readouterr().err
    assert (place / "there").read_text() == "mine"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_fails_leaves_nothing(place, name):
    if name in ("demo", "study run"):
        pytest.skip("its data come with it")
    assert run(*COMMANDS[name][0].split(), "--json", "new/folder/n.json") == 1
    assert not list(place.iterdir())


def test_outputs_are_apart_from_each_other_and_from_inputs(capsys, place):
    (place / "model").mkdir()
    (place / "model" / "config.json").write_text("mine")
    (place / "train.tsv").write_text("mine")
    words = ["finetune", "model", "--train", "train.tsv", "--val", "train.tsv"]
    for more, option in (
        ("--out made --json made", "--json 'made'"),
        ("--out made --json train.tsv", "--train 'train.tsv'"),
        ("--out model", "model 'model'"),
        ("--out new --json model/n.json", "model 'model'"),
    ):
        assert run(*words, *more.split(), "--overwrite") == 1
        said = " ".join(capsys.readouterr().err.split())
        assert "must be apart from" in said
        assert f"with {option}" in said
    assert {path.name for path in place.iterdir()} == {"model", "train.tsv"}
    assert (place / "train.tsv").read_text() == "mine"
    assert (place / "model" / "config.json").read_text() == "mine"


def test_a_folder_that_is_no_model_is_not_hashed(capsys, place, monkeypatch):
    (place / "tree").mkdir()
    hashed = []
    monkeypatch.setattr("smidgen.runtime.writing.claim.digest_path", hashed.append)
    assert run("predict", "tree", "no", "--data", FILE) == 1
    assert place / "tree" not in hashed
    assert Path("tree") not in hashed


def test_a_refused_overwrite_leaves_the_finished_run(capsys, place):
    make_world(place)
    words = (
        f"finetune encoder --train train.tsv --val val.tsv {TEXTS} --epochs 1 --out made"
    )
    assert run(*words.split()) == 0
    before = sorted(place.rglob("*"))
    refused = words.replace("--text sentence", "--text nosuch")
    assert run(*refused.split(), "--overwrite") == 1
    assert sorted(place.rglob("*")) == before
    assert run(*words.split()) == 0
    assert "made is done already" in capsys.readouterr().out
    (place / "made" / "model.safetensors").unlink()
    assert run(*words.split()) == 1
    assert "exists already" in capsys.readouterr().err


@contextmanager
def small_disk(disk, size):
    """Mount a disk of so many bytes."""
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(disk)]
    if not shutil.which("mount") or subprocess.run(mount, check=False).returncode:
        pytest.skip("only root may mount a disk")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_without_space_is_refused_before_the_fit(capsys, tmp_path):
    """As much as `plan` says is needed, and the system says is not there."""
    make_world(tmp_path)
    choice = "--percent 100 --method swag --rank 60"
    assert run(*f"plan map {choice} --no-time --json plan.json".split()) == 0
    plan = json.loads((tmp_path / "plan.json").read_text())
    stored = next(row for row in plan["rows"] if row["chosen"])["cost"]["stored_bytes"]
    words = f"fit map --train train.tsv --val val.tsv {TEXTS} {choice}"
    # Enough to begin with, and for the description of the run.
    with small_disk(tmp_path / "disk", (1 << 20) + stored // 2 + 8192) as disk:
        assert run(*words.split(), "--out", disk / "made") == 1
        assert not list(disk.iterdir())
    told = capsys.readouterr()
    said = " ".join(told.err.split())
    assert "--out must be on a disk with" in said
    assert format_bytes(stored + (1 << 20)) in said
    assert str(disk / "made") in said
    assert "Fitting" not in told.out


def test_the_labels_beside_images_are_read_too(place):
    images, labels = (place / f"train-{n}-ubyte" for n in ("images-idx3", "labels-idx1"))
    images.write_bytes(b"images")
    labels.write_bytes(b"labels")
    context = typer.Context(_load_command("run"))
    context.params = {"data": images, "folder": place / "made"}
    assert [each.path for each in _list_inputs(context, {"--out"})] == [images, labels]
