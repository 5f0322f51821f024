"""What takes long to make is made once, whole or not at all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import sleep

import pytest

from smidgen_studies.methods.cached_folder import cached_folder


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SMIDGEN_CACHE", str(tmp_path / "models"))
    return tmp_path / "models"


def test_a_cached_folder_is_made_once(folder):
    made = []

    def make(path):
        made.append(path)
        (path / "weights").write_text("1")

    for _ in range(2):
        assert (cached_folder("model", make) / "weights").read_text() == "1"
    assert len(made) == 1
    assert _list_whole(folder) == ["model"]


def test_workers_that_want_a_folder_at_once_wait_for_the_one_that_makes_it(folder):
    made = []

    def make(path):
        made.append(path)
        sleep(0.2)
        (path / "weights").write_text("1")

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: cached_folder("model", make), range(4)))
    assert [(path / "weights").read_text() for path in found] == ["1"] * 4
    assert len(made) == 1


def test_a_cached_folder_is_whole_or_not_there(folder):
    def fail(path):
        (path / "weights").write_text("half")
        raise RuntimeError("no index")

    with pytest.raises(RuntimeError, match="no index"):
        cached_folder("model", fail)
    assert not _list_whole(folder)


def _list_whole(folder):
    # A lock's file may stay; it holds nothing.
    return [path.name for path in folder.iterdir() if path.suffix != ".lock"]
