"""The files that a data set is read from: a study continues only if they are unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from smidgen.errors import DataError
from smidgen.runtime.reading import hash_file
from smidgen_studies.engine.cell import Cell, locate
from smidgen_studies.engine.ledger import Ledger
from smidgen_studies.kinds import KINDS

_DIGITS = 12
_FIELDS = ("train", "validation", "test", "outside", "folder")
"""The entries of a description that name files; the name of a data set does not."""


def file_digests(data: Mapping[str, Any], root: Path | None) -> dict[str, str]:
    """Hash the files and folders that a description names; those not there are left out."""
    if root is None:
        return {}
    paths = {name: locate(name, root, "") for name in sorted(_named_files(data))}
    return {name: _digest(path) for name, path in paths.items() if path.exists()}


def require_files(cells: Iterable[Cell], root: Path | None) -> None:
    """Refuse a folder that lacks what cells will read, before any of them starts."""
    # Descriptions of a user's own kind may name other things than files.
    seeds: dict[tuple[type, str], set[int]] = {}
    described: dict[tuple[type, str], Any] = {}
    for cell in cells:
        name = str(cell.data.get("name"))
        for file in _named_files(cell.data) if cell.kind in KINDS else ():
            path = locate(file, root, name)
            if not path.exists():
                raise DataError(
                    f"data {name!r} must have {file!r} to be read from, got nothing at "
                    f"{path}. Name the folder that it is in with --data."
                )
        key = type(cell.parsed_data), name
        described[key] = cell.parsed_data
        seeds.setdefault(key, set()).add(cell.seed)
    for key, data in described.items():
        if hasattr(data, "check_files"):
            data.check_files(root, sorted(seeds[key]))


def refuse_changed_files(cells: Iterable[Cell], ledger: Ledger, root: Path | None) -> None:
    """Refuse to continue a study whose data have changed since its first records."""
    for cell in cells:
        if not ledger.is_done(cell):
            continue
        before = ledger.record(cell).config.get("files", {})
        now = file_digests(cell.data, root)
        changed = [name for name in before if name in now and now[name] != before[name]]
        if changed:
            raise DataError(
                f"{changed[0]} under --data must be what it was when the records in "
                f"{ledger.folder} were made, got a changed one. Put the old file back, or "
                "pass another --out."
            )


def _named_files(data: Mapping[str, Any]) -> Iterator[str]:
    """The files and folders that a description names."""
    for entry in map(data.get, _FIELDS):
        names = entry.values() if isinstance(entry, Mapping) else [entry]
        yield from (name for name in names if name and isinstance(name, str))


def _digest(path: Path) -> str:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return _hash_files(
        tuple((f, f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file())
    )


# Many cells read the same files, which may be large.
@lru_cache(maxsize=64)
def _hash_files(files: tuple[tuple[Path, int, int], ...]) -> str:
    hashes = " ".join(hash_file(path) for path, _, _ in files)
    return sha256(hashes.encode()).hexdigest()[:_DIGITS]
