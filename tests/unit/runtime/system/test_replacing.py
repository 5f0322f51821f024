"""Files and folders replace one another on a system that does less than Linux."""

from __future__ import annotations

import os
import sys

import pytest
import torch
from torch import nn

import smidgen
from smidgen.errors import StoreError
from smidgen.runtime import files
from smidgen.runtime.files import new_folder, refuse_taken, write_bytes, write_text
from smidgen.runtime.reading import read_whole
from smidgen.runtime.system import replacing
from smidgen.runtime.system.process import identify_host
from smidgen.runtime.system.replacing import rename_folder, replace_file, sync
from tests.support.other_system import pretend_windows


@pytest.fixture
def windows(tmp_path, monkeypatch):
    pretend_windows(monkeypatch)
    monkeypatch.setattr(replacing, "_PAUSE", 0.0)
    yield
    identify_host.cache_clear()


def fill(folder, text, *, overwrite=True):
    with new_folder(folder, overwrite=overwrite) as work:
        (work / "a.txt").write_text(text, encoding="utf-8")


@pytest.mark.usefixtures("windows")
def test_files_and_folders_are_written_and_replaced(tmp_path):
    path, folder = tmp_path / "file", tmp_path / "folder"
    for text in ("old", "new\n"):
        write_text(path, text)
        assert read_whole(path) == text.encode()
        fill(folder, text)
        assert (folder / "a.txt").read_text(encoding="utf-8") == text
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


@pytest.mark.usefixtures("windows")
def test_an_empty_folder_is_replaced_and_a_full_one_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    fill(tmp_path / "empty", "new", overwrite=False)
    assert os.listdir(tmp_path / "empty") == ["a.txt"]
    with pytest.raises(StoreError, match="exists already and is not empty"):
        fill(tmp_path / "empty", "newer", overwrite=False)
    assert (tmp_path / "empty" / "a.txt").read_text(encoding="utf-8") == "new"
    assert os.listdir(tmp_path) == ["empty"]


@pytest.mark.usefixtures("windows")
def test_a_posterior_is_saved_replaced_and_loaded(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(40, 4)
    batches = [(x, (x[:, 0] > 0).long())]
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    subset = smidgen.select.last_layer(model)
    posterior = smidgen.fit.laplace(model, batches, subset, progress=False)
    for overwrite in (False, True):
        smidgen.save(posterior, tmp_path / "saved", overwrite=overwrite)
    loaded = smidgen.load(tmp_path / "saved", model=model)
    expected = smidgen.predict(posterior, model, batches[0]).probs
    assert torch.equal(smidgen.predict(loaded, model, batches[0]).probs, expected)


@pytest.mark.parametrize("known", [True, False])
def test_what_a_killed_save_left_is_swept(tmp_path, monkeypatch, known):
    """Without psutil nobody knows whether a process lives: leftovers stay for a day."""
    gone = os.fork()
    if not gone:
        os._exit(0)
    os.waitpid(gone, 0)
    pretend_windows(monkeypatch)
    if known:
        pytest.importorskip("psutil")
    else:
        monkeypatch.setitem(sys.modules, "psutil", None)
    target = tmp_path / "target"
    left = tmp_path / f"{files._name_start(target)}{identify_host()}-{gone}-00"
    left.write_text("half", encoding="utf-8")
    write_bytes(target, b"whole")
    assert left.exists() is not known
    monkeypatch.undo()
    identify_host.cache_clear()


@pytest.mark.usefixtures("windows")
def test_a_scanner_that_has_a_file_open_for_a_moment_is_waited_for(tmp_path, monkeypatch):
    refusals = 3

    def busy(call):
        def called(source, target):
            nonlocal refusals
            if refusals:
                refusals -= 1
                raise PermissionError(13, "Access is denied")
            call(source, target)

        return called

    monkeypatch.setattr(os, "replace", busy(os.replace))
    write_text(tmp_path / "file", "text")
    assert refusals == 0
    refusals = 3
    monkeypatch.setattr(os, "rename", busy(os.rename))
    fill(tmp_path / "folder", "text")
    assert refusals == 0
    refusals = 10**6
    with pytest.raises(StoreError, match=r"access is denied\. Name a place where you may"):
        write_text(tmp_path / "file", "other")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "text"


def test_elsewhere_a_refusal_is_final_at_once(tmp_path, monkeypatch):
    tries = []

    def refuse(*paths):
        tries.append(paths)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    monkeypatch.setattr(os, "rename", refuse)
    for rename in (replace_file, rename_folder):
        with pytest.raises(PermissionError):
            rename(tmp_path / "a", tmp_path / "b")
    assert len(tries) == 2


@pytest.mark.usefixtures("windows")
def test_what_is_synced_is_opened_to_write_and_folders_are_let_be(tmp_path):
    (tmp_path / "file").write_text("text", encoding="utf-8")
    sync(tmp_path / "file")
    sync(tmp_path)


def test_errors_say_nothing_of_a_system_that_cannot_exchange(tmp_path, monkeypatch):
    """As on macOS, which has no renameat2."""
    monkeypatch.setattr(replacing, "find_exchange", lambda: None)
    for text in ("old", "new"):
        fill(tmp_path / "folder", text)
    assert (tmp_path / "folder" / "a.txt").read_text(encoding="utf-8") == "new"
    about = {"needed": "a.txt", "written": ("*.txt",), "what": "thing"}
    refuse_taken(tmp_path / "folder", overwrite=True, **about)
    assert os.listdir(tmp_path) == ["folder"]


if sys.platform == "win32":
    pytestmark = pytest.mark.skip("Windows is pretended here, on another system")
