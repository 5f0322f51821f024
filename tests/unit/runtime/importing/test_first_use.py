"""Names of a package that are imported when somebody asks for them."""

from __future__ import annotations

import compileall
import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

INIT = """
from typing import TYPE_CHECKING

from smidgen.runtime.importing.first_use import import_on_first_use

if TYPE_CHECKING:
    from lazy_house import kitchen
    from lazy_house.cellar import (
        SHELF,
        wine,
    )
    from lazy_house.cellar import secret
    from lazy_house.broken import pieces
else:
    __getattr__, __dir__ = import_on_first_use(__name__)

__all__ = ["SHELF", "kitchen", "pieces", "wine"]
"""
FILES = {
    "__init__.py": INIT,
    "cellar.py": "SHELF = object()\nsecret = 3\ndef wine():\n    return 'red'\n",
    "kitchen.py": "pot = 'full'\n",
    "attic.py": "dust = True\n",
    "broken.py": "import no_such_package_at_all\n",
}


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A package whose `__init__` imports nothing of its own before it is asked."""
    folder = tmp_path / "lazy_house"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("lazy_house")
    for name in [name for name in sys.modules if name.split(".")[0] == "lazy_house"]:
        del sys.modules[name]


def loaded():
    return {
        name.partition(".")[2] for name in sys.modules if name.startswith("lazy_house.")
    }


def test_each_name_is_imported_when_it_is_asked_for(house):
    assert not loaded()
    assert house.wine() == "red"
    assert loaded() == {"cellar"}
    assert house.SHELF is sys.modules["lazy_house.cellar"].SHELF
    assert house.kitchen.pot == "full"
    assert loaded() == {"cellar", "kitchen"}


def test_a_name_is_looked_for_once(house):
    house.wine  # noqa: B018
    assert vars(house)["wine"] is sys.modules["lazy_house.cellar"].wine


def test_files_are_attributes_though_nobody_lists_them(house):
    assert house.attic.dust
    assert house.cellar.secret == 3


@pytest.mark.parametrize("name", ["nonsense", "secret", "__wrapped__", "no.such", ""])
def test_an_unknown_name_is_an_attribute_error(house, name):
    with pytest.raises(AttributeError, match=f"module 'lazy_house' has no.* '{name}'"):
        getattr(house, name)
    assert not hasattr(house, name)
    assert getattr(house, name, 7) == 7


def test_what_a_file_lacks_is_said_by_python(house):
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="no_such_package_at_all"):
            house.pieces  # noqa: B018


def test_all_names_are_listed_before_they_are_imported(house):
    assert set(house.__all__) | {"__name__", "__all__"} <= set(dir(house))
    assert dir(house) == sorted(dir(house))
    assert not loaded()


def test_from_imports_find_every_name(house):
    names = {}
    exec("from lazy_house import SHELF, kitchen, wine, attic", names)
    assert names["kitchen"] is sys.modules["lazy_house.kitchen"]
    assert names["attic"].dust
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from lazy_house import nonsense", {})


def test_no_source_is_needed(tmp_path, monkeypatch):
    folder = tmp_path / "lazy_house"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    compileall.compile_dir(folder, quiet=2, legacy=True)
    for name in FILES:
        (folder / name).unlink()
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert importlib.import_module("lazy_house").wine() == "red"
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "lazy_house"]:
            del sys.modules[name]


def test_threads_that_ask_at_once_get_the_same(house):
    start = Barrier(8)

    def ask(name):
        start.wait()
        return getattr(house, name)

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(ask, ["wine", "SHELF", "kitchen", "attic"] * 2))
    assert found[:4] == found[4:]
