"""`Ledger`: the folder of a study. A cell that has a record there is done.

    NAME.jsonl.gz  the records of a study all of whose cells are done, in one file
    records/       one record for each cell that is done, written whole as it finishes
    artifacts/     folders that cells left for others: models
    failed/        why a cell failed, until it is done
    work/          notes of cells that are running, from which a killed run resumes
    locks/         which cells are running

A running cell holds a lock, which the system releases when its process ends, however it
ends.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from smidgen.runtime.artifact import read_sealed_json, reading, write_sealed_json
from smidgen.runtime.files import explain_write_errors, sync_tree
from smidgen.runtime.packed_records import SUFFIX, pack_records, unpack_records
from smidgen.runtime.reading import convert_json
from smidgen.runtime.record import Record
from smidgen.runtime.system.replacing import rename_folder, sync
from smidgen.runtime.writing.writable import require_writable
from smidgen_studies.engine.cell import Cell, FinishedCell

# What the note of a failed cell holds.
_FAILURE: dict[str, Any] = {
    "cell": str,
    "data": str | None,
    "seed": int | None,
    "error": str,
    "tries": int,
    "trace": str,
}


@dataclass(frozen=True)
class Ledger:
    """The state of cells, as files under a folder."""

    folder: Path

    def record_path(self, cell: Cell) -> Path:
        """Where a cell's record is written as it finishes."""
        return self.folder / "records" / f"{cell.slug}.json"

    def pack_path(self, study: str) -> Path:
        """Where the records of a study are once all its cells are done."""
        return self.folder / f"{study}{SUFFIX}"

    def is_done(self, cell: Cell) -> bool:
        """Say whether a cell has its record."""
        return self.record_path(cell).is_file() or self._packed(cell) is not None

    def record(self, cell: Cell) -> Record:
        """Read the record of a cell that is done; a file of its own comes first."""
        # Another run may have packed it a moment ago.
        packed = None if self.record_path(cell).is_file() else self._packed(cell)
        return packed or Record.load(self.record_path(cell))

    def pack(self, study: str, cells: Iterable[Cell]) -> None:
        """Move the records of a study's cells into one file, beside those it has already."""
        loose = [cell for cell in cells if self.record_path(cell).is_file()]
        if not loose:
            return
        path = self.pack_path(study)
        earlier = unpack_records(path) if path.is_file() else {}
        pack_records(path, {**earlier, **{cell.slug: self.record(cell) for cell in loose}})
        for cell in loose:
            self.record_path(cell).unlink(missing_ok=True)

    def _packed(self, cell: Cell) -> Record | None:
        """A cell's record in any of the folder's packed files: studies share cells."""
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            records = _unpack(path, path.stat().st_mtime_ns)
            if cell.slug in records:
                return records[cell.slug]
        return None

    def artifact(self, cell: Cell) -> Path:
        """The folder that a cell leaves for others."""
        return self.folder / "artifacts" / cell.slug

    def can_be_used(self, cell: Cell) -> bool:
        """Say whether a cell is done and its artifact, if it left one, is still there."""
        if not self.is_done(cell):
            return False
        has_artifact = self.record(cell).config.get("artifact")
        return not has_artifact or self.artifact(cell).is_dir()

    def finished(self, cell: Cell) -> FinishedCell:
        """What a cell that is done left for others."""
        return FinishedCell(cell.name, self.record(cell), self.artifact(cell))

    def work(self, cell: Cell) -> Path:
        """The folder for a cell's own notes; it is made if it is not there."""
        folder = self.folder / "work" / cell.slug
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def finish(self, cell: Cell, record: Record, made: Path) -> None:
        """Keep what a cell made, its record last of all."""
        if made.is_dir():
            target = self.artifact(cell)
            with explain_write_errors(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                sync_tree(made)
                # A run that was killed before it wrote its record may have left one.
                shutil.rmtree(target, ignore_errors=True)
                rename_folder(made, target)
                sync(target.parent)
        record.save(self.record_path(cell))
        self._failure_path(cell).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "work" / cell.slug, ignore_errors=True)

    def failure(self, cell: Cell) -> Mapping[str, Any] | None:
        """Why a cell failed when it was last tried, if it did."""
        path = self._failure_path(cell)
        if self.is_done(cell) or not path.is_file():
            return None
        what, advice = "note of a failed cell", "Delete it."
        found = read_sealed_json(path, what=what, advice=advice)
        with reading(path, what, advice):
            return {n: convert_json(found[n], kind, n) for n, kind in _FAILURE.items()}

    def note_failure(self, cell: Cell, error: str, trace: str = "") -> None:
        """Note why a cell failed, and how often it has."""
        earlier = self.failure(cell) or {"tries": 0}
        failure = {
            "cell": cell.name,
            "data": cell.data.get("name"),
            "seed": cell.seed,
            "error": error,
            "tries": earlier["tries"] + 1,
            "trace": trace,
        }
        write_sealed_json(self._failure_path(cell), failure)

    @contextmanager
    def lock(self, cell: Cell) -> Iterator[None]:
        """Hold a cell's lock; wait while another process has it."""
        path = self._lock_path(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path, thread_local=False):
            yield

    def is_running(self, cell: Cell) -> bool:
        """Say whether a living process holds a cell's lock."""
        path = self._lock_path(cell)
        if not path.is_file():
            return False
        try:
            with FileLock(path, timeout=0, thread_local=False):
                return False
        except Timeout:
            return True

    def check(self) -> None:
        """Refuse a folder that could not be written to."""
        require_writable(self.folder, "--out", folder=True)

    def sweep(self, cells: Iterable[Cell]) -> None:
        """Remove what a run that was killed left of cells that are done."""
        for cell in cells:
            # One whose artifact was lost may be being done again.
            if self.can_be_used(cell) and not self.is_running(cell):
                self._failure_path(cell).unlink(missing_ok=True)
                shutil.rmtree(self.folder / "work" / cell.slug, ignore_errors=True)

    def _failure_path(self, cell: Cell) -> Path:
        return self.folder / "failed" / f"{cell.slug}.json"

    def _lock_path(self, cell: Cell) -> Path:
        return self.folder / "locks" / cell.slug


# A file that has been rewritten since is another file.
@lru_cache(maxsize=16)
def _unpack(path: Path, changed: int) -> Mapping[str, Record]:
    return unpack_records(path)


@dataclass(frozen=True)
class State:
    """The cells of a study by what has become of them; `left` have not been tried yet."""

    done: tuple[Cell, ...]
    running: tuple[Cell, ...]
    failed: tuple[Cell, ...]
    left: tuple[Cell, ...]


def read_state(cells: tuple[Cell, ...], ledger: Ledger) -> State:
    """Sort cells by what has become of them, from the folder alone."""
    by_state: dict[str, list[Cell]] = {"done": [], "running": [], "failed": [], "left": []}
    for cell in cells:
        if ledger.is_done(cell):
            state = "done"
        elif ledger.is_running(cell):
            state = "running"
        else:
            state = "failed" if ledger.failure(cell) else "left"
        by_state[state].append(cell)
    return State(**{state: tuple(group) for state, group in by_state.items()})
