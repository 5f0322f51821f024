"""`Ledger`: the folder of a study. What is there is done; all else can be made again.

    records/   one record for each cell that is done, written whole as it finishes
    artifacts/ folders that cells left for others: models
    failed/    why a cell failed, until it is done
    work/      notes of cells that are being done, for a killed run to go on from
    locks/     who is doing which cell

A cell that is being done holds a lock that the system takes back when its process ends,
however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smidgen.errors import StoreError
from smidgen.runtime.files import write_text
from smidgen.runtime.record import Record
from smidgen_studies.engine.cell import Cell, Done


@dataclass(frozen=True)
class Ledger:
    """The state of cells, as files under a folder."""

    folder: Path

    def record_path(self, cell: Cell) -> Path:
        """Where the record of a cell is, or will be."""
        return self.folder / "records" / f"{cell.slug}.json"

    def is_done(self, cell: Cell) -> bool:
        """Say whether a cell has its record."""
        return self.record_path(cell).is_file()

    def record(self, cell: Cell) -> Record:
        """Read the record of a cell that is done."""
        return Record.load(self.record_path(cell))

    def artifact(self, cell: Cell) -> Path:
        """The folder that a cell leaves for others."""
        return self.folder / "artifacts" / cell.slug

    def can_be_used(self, cell: Cell) -> bool:
        """Say whether a cell is done and what it left for others is still there."""
        if not self.is_done(cell):
            return False
        left = self.record(cell).config.get("artifact")
        return not left or self.artifact(cell).is_dir()

    def found(self, cell: Cell) -> Done:
        """What a cell that is done left."""
        return Done(cell.name, self.record(cell), self.artifact(cell))

    def work(self, cell: Cell) -> Path:
        """The folder for a cell's own notes, made if need be."""
        folder = self.folder / "work" / cell.slug
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def finish(self, cell: Cell, record: Record, made: Path) -> None:
        """Put what a cell made in its place, and its record last of all.

        Args:
            cell: The cell.
            record: Its record.
            made: The folder it left for others, if it left one.
        """
        if made.is_dir():
            target = self.artifact(cell)
            target.parent.mkdir(parents=True, exist_ok=True)
            # Left by a run that was killed before it could write its record.
            shutil.rmtree(target, ignore_errors=True)
            os.replace(made, target)
        record.save(self.record_path(cell))
        self._failure_path(cell).unlink(missing_ok=True)
        shutil.rmtree(self.folder / "work" / cell.slug, ignore_errors=True)

    def failure(self, cell: Cell) -> Mapping[str, Any] | None:
        """Why a cell failed when it was last tried, if it did."""
        path = self._failure_path(cell)
        if self.is_done(cell) or not path.is_file():
            return None
        found: Mapping[str, Any] = json.loads(path.read_text("utf-8"))
        return found

    def note_failure(self, cell: Cell, error: str, trace: str = "") -> None:
        """Note why a cell failed, and how often it has."""
        before = self.failure(cell) or {"tries": 0}
        noted = {
            "cell": cell.name,
            "data": cell.data.get("name"),
            "seed": cell.seed,
            "error": error,
            "tries": before["tries"] + 1,
            "trace": trace,
        }
        write_text(self._failure_path(cell), json.dumps(noted, indent=1) + "\n")

    @contextmanager
    def held(self, cell: Cell) -> Iterator[None]:
        """Hold a cell's lock, waiting for whoever has it.

        Args:
            cell: The cell.

        Yields:
            Nothing.
        """
        path = self._lock_path(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def is_running(self, cell: Cell) -> bool:
        """Say whether a living process holds a cell's lock."""
        path = self._lock_path(cell)
        if not path.is_file():
            return False
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def check(self) -> None:
        """Refuse a folder that cannot be one of a study.

        Raises:
            StoreError: If it is a file.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise StoreError(f"--out must be a folder, got the file {self.folder}.")

    def _failure_path(self, cell: Cell) -> Path:
        return self.folder / "failed" / f"{cell.slug}.json"

    def _lock_path(self, cell: Cell) -> Path:
        return self.folder / "locks" / cell.slug


@dataclass(frozen=True)
class State:
    """Where each cell of a study stands; `left` are those nobody has tried yet."""

    done: tuple[Cell, ...]
    running: tuple[Cell, ...]
    failed: tuple[Cell, ...]
    left: tuple[Cell, ...]


def state_of(cells: tuple[Cell, ...], ledger: Ledger) -> State:
    """Tell where each cell stands, from the folder alone."""
    found: dict[str, list[Cell]] = {"done": [], "running": [], "failed": [], "left": []}
    for cell in cells:
        if ledger.is_done(cell):
            found["done"].append(cell)
        elif ledger.is_running(cell):
            found["running"].append(cell)
        elif ledger.failure(cell):
            found["failed"].append(cell)
        else:
            found["left"].append(cell)
    return State(*(tuple(each) for each in found.values()))
