"""What takes long to make is made once, whole or not at all."""

from __future__ import annotations

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
    assert [path.name for path in folder.iterdir()] == ["model"]


def test_a_cached_folder_is_whole_or_not_there(folder):
    def fail(path):
        (path / "weights").write_text("half")
        raise RuntimeError("no index")

    with pytest.raises(RuntimeError, match="no index"):
        cached_folder("model", fail)
    assert not list(folder.iterdir())
