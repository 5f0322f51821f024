"""Which files a data set is read from: a study goes on only with the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from smidgen.errors import DataError
from smidgen.runtime.files import hash_file
from smidgen_studies.engine.cell import Cell, located
from smidgen_studies.engine.ledger import Ledger
from smidgen_studies.kinds import KINDS, data_of

_DIGITS = 12
_FIELDS = ("train", "validation", "test", "outside", "folder")
"""What of a description names files; a data set may have the name of a folder, too."""


def digests(data: Mapping[str, Any], root: Path | None) -> dict[str, str]:
    """Hash the files and folders that a data set's description names.

    Args:
        data: The description.
        root: The folder they are under.

    Returns:
        A hash by name; names of nothing that is there are left out.
    """
    if root is None:
        return {}
    paths = {name: located(name, root, "") for name in sorted(_named(data))}
    return {name: _digest(path) for name, path in paths.items() if path.exists()}


def require_files(cells: Iterable[Cell], root: Path | None) -> None:
    """Refuse a folder that lacks what cells are to read, before any of them is begun.

    Args:
        cells: The cells; those of kinds that are not ours may name other things.
        root: The folder of the data, if one was given.

    Raises:
        ArgumentError: If what they read is under a folder, and none was given.
        DataError: If a file or folder is not there, or cannot be what they are to read.
    """  # noqa: DOC502
    seeds: dict[tuple[type, str], set[int]] = {}
    told: dict[tuple[type, str], Any] = {}
    for cell in cells:
        about, data = data_of(cell), str(cell.data.get("name"))
        for name in _named(cell.data) if cell.kind in KINDS else ():
            path = located(name, root, data)
            if not path.exists():
                raise DataError(
                    f"data {data!r} must have {name!r} to be read from, got nothing at "
                    f"{path}. Name the folder that it is in with --data."
                )
        told[type(about), data] = about
        seeds.setdefault((type(about), data), set()).add(cell.seed)
    for key, about in told.items():
        if hasattr(about, "check_files"):
            about.check_files(root, sorted(seeds[key]))


def refuse_changed(cells: Iterable[Cell], ledger: Ledger, root: Path | None) -> None:
    """Refuse to go on with a study whose data have changed since its first records.

    Args:
        cells: The cells of the study.
        ledger: Where their records are.
        root: The folder of the data.

    Raises:
        DataError: If a record was made of other files.
    """
    for cell in cells:
        if not ledger.is_done(cell):
            continue
        before = ledger.record(cell).config.get("files", {})
        now = digests(cell.data, root)
        other = [name for name in before if name in now and now[name] != before[name]]
        if other:
            raise DataError(
                f"{other[0]} under --data must be what it was when the records in "
                f"{ledger.folder} were made, got another. Put the old file back, or pass "
                "another --out."
            )


def _named(data: Mapping[str, Any]) -> Iterator[str]:
    """The files and folders that a description names."""
    return filter(None, _texts({field: data.get(field) for field in _FIELDS}))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)


def _digest(path: Path) -> str:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return _of_files(
        tuple((f, f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file())
    )


# Cells of a data set follow each other, and its files may be large.
@lru_cache(maxsize=64)
def _of_files(files: tuple[tuple[Path, int, int], ...]) -> str:
    hashes = " ".join(hash_file(path) for path, _, _ in files)
    return sha256(hashes.encode()).hexdigest()[:_DIGITS]
