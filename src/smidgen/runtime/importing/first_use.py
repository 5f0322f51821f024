"""A package's public names, imported on first use.

An `__init__` that imports all it exports makes everyone wait for torch, also those who only
ask for help. So it lists its imports as usual, but under `if TYPE_CHECKING:`, where type
checkers and editors read them and Python does not run them. Here the same lines are read, from
the module's byte code (which is there also where sources are not), and each is run when its
name is asked for.

A public name must not be the name of a file or folder of its package as well, unless it
stands for that: Python puts an imported file under its own name, and asks nobody.

Threads may ask for the first names at once. Python would let them import a folder and files
of it at the same time, and then find them waiting for each other; so they go one by one. For
the same reason no file of the library imports public names from their package: while it is
being imported, it would wait for a thread that may be waiting for it.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from threading import RLock
from types import CodeType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from importlib.abc import InspectLoader

_ONE_BY_ONE = RLock()


def import_on_first_use(
    package: str,
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Make the `__getattr__` and `__dir__` of a package.

    Args:
        package: Its name. What its `__init__` imports under `if TYPE_CHECKING:` and lists in
            `__all__`, and every file and folder in it, becomes an attribute on first use.

    Returns:
        Both functions, to be assigned in the package's `__init__`.
    """
    module = sys.modules[package]

    @cache
    def find_homes() -> dict[str, str]:
        assert module.__spec__ is not None
        code = cast("InspectLoader", module.__spec__.loader).get_code(package)
        assert code is not None
        homes = _list_imports(code)
        return {name: homes[name] for name in module.__all__}

    def find_name(name: str) -> object:
        home = find_homes().get(name)
        if home is not None:
            with _ONE_BY_ONE:
                found = _import_from(home, name)
        elif name.isidentifier() and find_spec(f"{package}.{name}"):
            found = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        # The next time Python finds it by itself.
        vars(module)[name] = found
        return found

    def list_names() -> list[str]:
        return sorted({*vars(module), *module.__all__})

    return find_name, list_names


def _list_imports(code: CodeType) -> dict[str, str]:
    """List what every `from module import name` of a module imports: name to module."""
    homes, home = {}, ""
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            home = step.argval
        elif step.opname == "IMPORT_FROM":
            homes[step.argval] = home
    return homes


def _import_from(home: str, name: str) -> object:
    """Do what `from home import name` does, without asking a package's `__getattr__`."""
    module = import_module(home)
    return vars(module)[name] if name in vars(module) else import_module(f"{home}.{name}")
