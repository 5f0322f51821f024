"""The API reference: a page for every room with public names, an entry for every name.

What is public is read from the sources, without importing them: every `__all__`, and every
name that a page's code imports from deeper down.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from docs.build.site import ROOT

SOURCES = ROOT / "src"
# What stands in `__all__` here are programs, which have a page of their own.
_PROGRAMS = ("smidgen.cli", "smidgen_studies")
_CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
_DEEPER = "deeper"
_OPTIONS = (
    "    options:\n      heading: {name}\n      toc_label: {name}\n      heading_level: 2\n"
)


@dataclass(frozen=True, order=True)
class Entry:
    """A public name: where users find it, and where it is defined."""

    name: str
    home: str

    @property
    def path(self) -> str:
        """The dotted path of the definition."""
        return f"{self.home}.{self.name}"


@dataclass(frozen=True)
class Room:
    """A page of the reference: a package, what it says of itself, and its names."""

    module: str
    about: str
    entries: tuple[Entry, ...]

    @property
    def page(self) -> str:
        """The page's address within the site's sources."""
        return f"api/{self.module}.md"


def find_source(module: str) -> Path:
    """Find the file of a module."""
    stem = SOURCES.joinpath(*module.split("."))
    package = stem / "__init__.py"
    return package if package.is_file() else stem.with_suffix(".py")


@cache
def read_module(module: str) -> ast.Module:
    """Parse a module's source."""
    return ast.parse(find_source(module).read_text(encoding="utf-8"))


def list_public(module: str) -> list[str]:
    """List a module's `__all__`, in the order of the alphabet."""
    for node in read_module(module).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__"
            for target in node.targets
        ):
            return sorted(ast.literal_eval(node.value), key=str.lower)
    return []


def find_home(module: str, name: str) -> str | None:
    """Find the module that defines a name, through any number of imports.

    Args:
        module: Where the name is known.
        name: The name.

    Returns:
        The module, or None if the name is itself a package.
    """
    for node in ast.walk(read_module(module)):
        if isinstance(node, ast.ImportFrom) and any(
            (alias.asname or alias.name) == name for alias in node.names
        ):
            assert node.module is not None
            inner = f"{node.module}.{name}"
            if find_source(inner).is_file() and not _defines(node.module, name):
                return None
            return find_home(node.module, name)
    return module


def _defines(module: str, name: str) -> bool:
    """Whether a module has a name besides its folders and files of that name."""
    return any(
        (isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name)
        or (
            isinstance(node, ast.ImportFrom)
            and node.module != module
            and name in {alias.name for alias in node.names}
        )
        for node in ast.walk(read_module(module))
    )


def list_rooms() -> list[Room]:
    """List the packages that have an `__all__`, the nearest to the user first."""
    modules = sorted(
        ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")
        for path in SOURCES.rglob("*.py")
    )
    return [
        _make_room(module, list_public(module))
        for module in modules
        if not module.startswith(_PROGRAMS) and list_public(module)
    ]


def _make_room(module: str, names: list[str]) -> Room:
    homes = {name: find_home(module, name) for name in names}
    return Room(
        module,
        ast.get_docstring(read_module(module)) or "",
        tuple(Entry(name, home) for name, home in homes.items() if home is not None),
    )


def list_used(pages: list[Path]) -> list[Entry]:
    """List what code on pages imports from files that have no `__all__`.

    Args:
        pages: Markdown files.

    Returns:
        An entry for each name, by module.
    """
    entries = set()
    for page in pages:
        for code in _CODE.findall(page.read_text(encoding="utf-8")):
            for node in ast.walk(ast.parse(code)):
                if not isinstance(node, ast.ImportFrom) or node.module is None:
                    continue
                if node.module.startswith("smidgen") and not list_public(node.module):
                    entries |= {Entry(alias.name, node.module) for alias in node.names}
    return sorted(entries, key=lambda entry: (entry.home, entry.name.lower()))


def write_room(room: Room) -> str:
    """Write a room's page.

    Args:
        room: The room.

    Returns:
        Markdown with an anchor for each name, its public path, and mkdocstrings' mark.
    """
    parts = [f"# {room.module}", _first_sentence(room.about), _say_import(room.module)]
    parts += [write_entry(f"{room.module}.{entry.name}", entry) for entry in room.entries]
    return "\n\n".join(parts) + "\n"


def write_deeper(entries: list[Entry]) -> str:
    """Write the page of names that are imported from where they are defined."""
    parts = [
        "# Names from further down",
        "What the pages import from the file that defines it; fewer people need these.",
    ]
    parts += [write_entry(entry.path, entry) for entry in entries]
    return "\n\n".join(parts) + "\n"


def write_entry(public: str, entry: Entry) -> str:
    """Write one name: an anchor with its public path, and mkdocstrings' mark."""
    anchor = f'<span id="{public}"></span>\n\n' if public != entry.path else ""
    return f"{anchor}::: {entry.path}\n{_OPTIONS.format(name=entry.name)}"


def write_index(rooms: list[Room], deeper: list[Entry]) -> str:
    """Write the reference's first page: every room and its names."""
    lines = [
        "# API reference",
        "",
        "Every public name, written from its docstring.",
        "",
        "| from | names |",
        "|---|---|",
    ]
    for room in rooms:
        file = room.page.removeprefix("api/")
        links = (f"[`{e.name}`]({file}#{room.module}.{e.name})" for e in room.entries)
        lines.append(f"| [{room.module}]({file}) | {', '.join(links)} |")
    links = (f"[`{e.name}`]({_DEEPER}.md#{e.path})" for e in deeper)
    lines.append(f"| [further down]({_DEEPER}.md) | {', '.join(links)} |")
    return "\n".join(lines) + "\n"


def _say_import(module: str) -> str:
    """How a room's names are reached."""
    if module.count(".") < 2:
        return f"Under `{module}.` after `import smidgen`."
    return f"`from {module} import ...`"


def _first_sentence(about: str) -> str:
    """The first paragraph of a docstring, without code that follows."""
    return about.split("\n\n")[0]


def write_reference(pages: list[Path]) -> dict[str, str]:
    """Write the whole reference.

    Args:
        pages: Markdown files whose code may import further names.

    Returns:
        Markdown by address.
    """
    rooms, deeper = list_rooms(), list_used(pages)
    written = {"api/index.md": write_index(rooms, deeper)}
    written |= {room.page: write_room(room) for room in rooms}
    return written | {f"api/{_DEEPER}.md": write_deeper(deeper)}
