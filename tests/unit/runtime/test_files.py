"""Files and folders are there whole, old or new, whatever happens while they are written."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from safetensors.torch import save_file

from smidgen.errors import StoreError
from smidgen.runtime import files
from smidgen.runtime.files import new_folder, recover, refuse_taken, write_bytes, write_text
from smidgen.runtime.system.process import identify_host
from smidgen.runtime.system.replacing import find_exchange

OLD, NEW = b"old " * 5000, b"new " * 6000


def fill(folder, content, *, overwrite=True):
    with new_folder(folder, overwrite=overwrite) as work:
        (work / "inner").mkdir()
        (work / "inner" / "a.txt").write_bytes(content)
        (work / "b.txt").write_bytes(content)


def fill_tensors(folder):
    with new_folder(folder, overwrite=True) as work:
        save_file({"a": torch.zeros(9999)}, work / "a.safetensors")


def content_of(target):
    """What a file or a folder holds; all its files must agree."""
    if target.is_file():
        return target.read_bytes()
    assert sorted(os.listdir(target)) == ["b.txt", "inner"]
    both = {(target / "inner" / "a.txt").read_bytes(), (target / "b.txt").read_bytes()}
    assert len(both) == 1
    return both.pop()


WAYS = {"file": write_bytes, "folder": fill}


def kill_at(nth, moment):
    """Make this process kill itself before or after its nth call into the file system."""
    count = 0

    def counted(call):
        def called(*args, **how):
            nonlocal count
            count += 1
            here = count == nth
            if here and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return call(*args, **how)
            finally:
                if here:
                    os.kill(os.getpid(), signal.SIGKILL)

        return called

    for name in ("fsync", "replace", "rename", "open", "mkdir", "unlink", "rmdir"):
        setattr(os, name, counted(getattr(os, name)))
    files.exchange_folders = counted(files.exchange_folders)


def run_killed(work, nth, moment):
    """Do some work in a child that dies at its nth call; say whether it died."""
    child = os.fork()
    if not child:
        try:
            kill_at(nth, moment)
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.fixture
def tmp_path(tmp_path):
    """A folder in memory where there is one: thousands of syncs wear out a disk."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("kind", WAYS)
def test_a_kill_at_any_step_leaves_the_old_or_the_new_whole(
    tmp_path, monkeypatch, kind, exchange, existing, moment
):
    if not exchange:
        monkeypatch.setattr(files, "exchange_folders", lambda *_: False)
    seen, nth = set(), 0
    while True:
        nth += 1
        target = tmp_path / f"{nth}" / "target"
        target.parent.mkdir()
        if existing:
            WAYS[kind](target, OLD)
        died = run_killed(lambda to=target: WAYS[kind](to, NEW), nth, moment)
        recover(target)
        if existing:
            found = content_of(target)
        else:
            found = content_of(target) if target.exists() else None
        assert found in ((OLD, NEW) if existing else (None, NEW))
        seen.add(found)
        # The next save sweeps what was left.
        WAYS[kind](target, NEW)
        assert os.listdir(target.parent) == ["target"]
        assert content_of(target) == NEW
        if not died:
            break
    assert nth > 4
    assert seen == ({OLD, NEW} if existing else {None, NEW})


def test_a_reader_never_sees_a_missing_folder(tmp_path):
    """Where the system can exchange two folders, an overwrite has no gap."""
    if find_exchange() is None:
        pytest.skip("no renameat2 here")
    target, missing, stop = tmp_path / "target", [], threading.Event()
    fill(target, OLD)

    def look():
        while not stop.is_set():
            if not target.exists():
                missing.append(1)

    watcher = threading.Thread(target=look)
    watcher.start()
    for _ in range(30):
        fill(target, NEW)
    stop.set()
    watcher.join()
    assert not missing


def test_leftovers_of_the_living_stay(tmp_path):
    target = tmp_path / "target"
    start = files._name_start(target)
    alive, reader, writer = os.fork(), *os.pipe()
    if not alive:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    gone = os.fork()
    if not gone:
        os._exit(0)
    os.waitpid(gone, 0)
    names = {
        f"{start}{identify_host()}-{alive}-00": True,
        f"{start}{identify_host()}-{gone}-00": False,
        f"{start}deadbeef-{gone}-00": True,  # another machine: it may be running there
        f"{start}deadbeef-{gone}-01": False,  # and yet not for two days
        f"{start}{identify_host()}-{os.getpid()}-00": False,  # a number that was used again
        f".other-{gone}": True,
    }
    for name in names:
        (tmp_path / name).write_text("half")
    long_ago = time.time() - 2 * 86_400
    os.utime(tmp_path / f"{start}deadbeef-{gone}-01", (long_ago, long_ago))
    write_text(target, "whole")
    os.close(writer)
    os.waitpid(alive, 0)
    kept = sorted(name for name, stays in names.items() if stays)
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "target"])


def test_saves_beside_each_other_do_not_sweep_each_other(tmp_path):
    target, failed = tmp_path / "target", []

    def save():
        for _ in range(20):
            try:
                write_bytes(target, NEW)
            except StoreError as error:
                failed.append(error)

    threads = [threading.Thread(target=save) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert os.listdir(tmp_path) == ["target"]


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("overwrite", [True, False])
def test_of_folders_that_meet_one_wins_unless_told_to_replace(
    tmp_path, monkeypatch, overwrite, exchange
):
    if not exchange:
        monkeypatch.setattr(files, "exchange_folders", lambda *_: False)
    for number in range(20):
        target, said = tmp_path / f"{number}" / "target", []
        # All have filled theirs before the first gives it its name.
        filled = threading.Barrier(4)

        def save(to=target, heard=said, meet=filled):
            try:
                with new_folder(to, overwrite=overwrite) as work:
                    (work / "a.txt").write_bytes(NEW)
                    meet.wait(20)
                heard.append("saved")
            except StoreError as error:
                heard.append(str(error))

        threads = [threading.Thread(target=save) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert said.count("saved") == (4 if overwrite else 1)
        refused = [each for each in said if each != "saved"]
        assert all(f"{target} exists already and is" in each for each in refused)
        assert os.listdir(target.parent) == ["target"]


def test_new_files_have_the_permissions_of_the_umask_and_it_is_never_set(
    tmp_path, monkeypatch
):
    before = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", None)
        write_text(tmp_path / "file", "text")
        with new_folder(tmp_path / "folder", overwrite=False) as work:
            (work / "inner").mkdir()
            os.close(os.open(work / "private", os.O_CREAT | os.O_WRONLY, 0o600))
        monkeypatch.undo()
    finally:
        os.umask(before)
    modes = {
        str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode)
        for path in tmp_path.rglob("*")
    }
    private = {"file": 0o640, "folder/private": 0o640}
    assert modes == {**private, "folder": 0o750, "folder/inner": 0o750}


def test_a_full_disk_is_one_sentence_and_leaves_the_old(tmp_path):
    target = tmp_path / "target"
    write_bytes(target, OLD)
    fill(tmp_path / "folder", OLD)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    said = tmp_path / "said.json"
    child = os.fork()
    if not child:
        messages = []
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        for save in (
            lambda: write_bytes(target, NEW),
            lambda: fill(tmp_path / "folder", NEW),
            lambda: fill_tensors(tmp_path / "folder"),
        ):
            try:
                save()
            except StoreError as error:
                messages.append(str(error))
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        said.write_text(json.dumps(messages))
        os._exit(0)
    os.waitpid(child, 0)
    first, second, third = json.loads(said.read_text())
    assert first.startswith(f"{target} cannot be written: file too large. Raise the limit")
    assert second.startswith(f"{tmp_path / 'folder'} cannot be written: file too large.")
    assert third == second
    assert content_of(target) == content_of(tmp_path / "folder") == OLD
    assert sorted(os.listdir(tmp_path)) == ["folder", "said.json", "target"]


@pytest.mark.parametrize(
    "save", [lambda path: write_text(path, "a"), lambda p: fill(p, OLD)]
)
def test_errors_of_the_system_name_the_path_and_the_remedy(tmp_path, save):
    long = tmp_path / ("x" * 300)
    with pytest.raises(
        StoreError, match=r"cannot be written: file name too long. Choose a sh"
    ):
        save(long)
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StoreError, match=r"file/inside cannot be written: .*Check the path"
    ):
        save(tmp_path / "file" / "inside")
    with pytest.raises(StoreError, match=r"/proc/nowhere/\w+ cannot be written"):
        save(Path("/proc/nowhere/here"))
    with pytest.raises(StoreError, match="null character"):
        save(tmp_path / "a\0b")
    with pytest.raises(StoreError, match="surrogate pair"):
        save(tmp_path / "a\ud800")
    assert sorted(os.listdir(tmp_path)) == ["file"]


def test_names_as_long_as_the_system_takes_are_written(tmp_path):
    write_text(tmp_path / ("x" * 255), "text")
    fill(tmp_path / ("y" * 255), OLD)
    odd = os.fsdecode(b"caf\xe9 [] \n")
    write_text(tmp_path / odd, "text")
    fill(tmp_path / f"{odd}2", OLD)
    assert len(os.listdir(tmp_path)) == 4


def test_devices_are_not_replaced_and_links_are_written_through(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (Path("/dev/null"), tmp_path / "fifo", tmp_path):
        with pytest.raises(StoreError, match="must be a file, or not exist"):
            write_text(path, "text")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "file")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "file").read_text() == "text"


def test_a_folder_that_was_moved_aside_is_put_back_before_it_is_judged(tmp_path):
    target = tmp_path / "target"
    gone = os.fork()
    if not gone:
        os._exit(0)
    os.waitpid(gone, 0)
    left = tmp_path / f"{files._name_start(target)}{identify_host()}-{gone}-00"
    fill(left / "old", OLD)
    about = {"needed": "b.txt", "written": ("*",), "what": "thing"}
    with pytest.raises(StoreError, match="exists already"):
        refuse_taken(target, overwrite=False, **about)
    assert content_of(target) == OLD
    assert os.listdir(tmp_path) == ["target"]


if sys.platform != "linux":
    pytestmark = pytest.mark.skip("the tests kill and limit processes as Linux does")
