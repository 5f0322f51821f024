"""What could not be written is refused before the work, by the option and the path."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from smidgen import fit
from smidgen.errors import StoreError
from smidgen.runtime.files import write_text
from smidgen.runtime.writing.writable import require_space, require_writable
from tests.faults.python_works import make_batches, make_model

NOBODY = 65534


def refused(path, *words, **how):
    with pytest.raises(StoreError) as error:
        require_writable(path, "--out", **how)
    text = str(error.value)
    assert text.startswith("--out must ")
    assert text.endswith(".")
    for word in words:
        assert word in text
    return text


@pytest.mark.parametrize("folder", [False, True])
def test_what_can_be_written_is_not_touched(tmp_path, folder):
    require_writable(tmp_path / "new", "--out", folder=folder)
    require_writable(tmp_path / "a" / "b" / "new", "--out", folder=folder)
    assert not list(tmp_path.iterdir())
    (tmp_path / "there").mkdir() if folder else (tmp_path / "there").touch()
    require_writable(tmp_path / "there", "--out", folder=folder)


@pytest.mark.parametrize("folder", [False, True])
def test_a_place_that_takes_nothing_is_refused(tmp_path, folder):
    (tmp_path / "file").touch()
    refused(
        tmp_path / "file" / "new", str(tmp_path / "file"), "is no folder", folder=folder
    )
    refused(tmp_path / "file" / "a" / "new", str(tmp_path / "file"), folder=folder)
    # Nobody makes files there, not even root.
    refused("/proc/new", "/proc/new", "can be written", folder=folder)
    refused(f"{tmp_path}/a\0b", folder=folder)


def test_a_thing_of_another_kind_is_refused(tmp_path):
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "file", "a folder, got the file", folder=True)
    refused(tmp_path, "a file, got the folder")
    refused("/dev/full", "a plain file, got the device or pipe /dev/full")
    refused(tmp_path / "pipe", "a plain file")


def test_names_up_to_the_limit_can_be_written(tmp_path):
    for count in (240, 255):
        path = tmp_path / ("x" * count)
        require_writable(path, "--out")
        assert write_text(path, "text").read_text() == "text"
    require_writable(tmp_path / ("ü" * 127), "--out")
    refused(tmp_path / ("x" * 256), "255 bytes or fewer, got 256", "shorter")
    refused(tmp_path / ("ü" * 128), "got 256")
    refused(tmp_path / ("x" * 300) / "new", "got 300")


def test_a_disk_without_the_space_is_refused(tmp_path):
    require_space(tmp_path / "new", "--out", 1000)
    text = refused(tmp_path / "a" / "new", str(tmp_path), size=1 << 60)
    assert "1.15 EB free" in text
    assert "Free some space" in text


@pytest.fixture
def public():
    """A folder that every user may enter; pytest's own are closed."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_a_folder_of_somebody_else_is_refused(public):
    """As another user: root may write everywhere."""
    closed, opened = public / "closed", public / "opened"
    for folder, mode in ((closed, 0o755), (opened, 0o777)):
        folder.mkdir()
        folder.chmod(mode)
    code = f"""
import os
from smidgen.errors import StoreError
from smidgen.runtime.writing.writable import require_writable
if os.geteuid() == 0:
    os.seteuid({NOBODY})
require_writable({str(opened / "new")!r}, "--out")
try:
    require_writable({str(closed / "a" / "new")!r}, "--out")
except StoreError as error:
    print(error)
"""
    if os.geteuid():
        closed.chmod(0o555)
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "(Permission denied). Give a path where you may write." in ended.stdout
    assert str(closed / "a" / "new") in ended.stdout


FITS = {
    "ssvi": lambda path: fit.ssvi(
        make_model(),
        make_batches(),
        settings=fit.SsviSettings(every=4),
        checkpoint=path,
    ),
    "langevin": lambda path: fit.langevin(make_model(), make_batches(), checkpoint=path),
    "finetune": lambda path: fit.finetune(make_model(), make_batches(), checkpoint=path),
}


@pytest.mark.parametrize("name", FITS)
def test_a_fit_checks_its_checkpoint_before_the_first_step(tmp_path, name, monkeypatch):
    monkeypatch.delattr("torch.Tensor.backward")
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "state", tmp_path, "/proc/state"):
        with pytest.raises(StoreError, match="^checkpoint must be ") as error:
            FITS[name](path)
        assert str(path) in str(error.value)
