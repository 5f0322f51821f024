"""What an engine is: it does cells, several at once, and says how each of them ended."""

from __future__ import annotations

import shutil
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from smidgen.errors import SmidgenError, SmidgenWarning
from smidgen.integrations.devices import find_device
from smidgen.runtime.record import Record
from smidgen_studies.engine.cell import Cell, Job
from smidgen_studies.engine.data_files import file_digests
from smidgen_studies.engine.ledger import Ledger
from smidgen_studies.engine.protocol import PROTOCOL
from smidgen_studies.kinds import find_kind


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: `error` is empty if it is done."""

    key: str
    error: str = ""


@dataclass(frozen=True)
class Workspace:
    """Where cells find their data, leave their records and put their models."""

    folder: Path
    data: Path | None = None
    device: str = "cpu"


class Engine(Protocol):
    """Does cells, several at once."""

    def has_room(self) -> bool:
        """Say whether another cell could be started now."""

    def start(self, cell: Cell) -> None:
        """Start a cell whose needs are done."""

    def wait(self) -> Sequence[Outcome]:
        """Wait until a cell has ended, done or failed."""

    def close(self) -> None:
        """End all workers."""


def do_cell(cell: Cell, workspace: Workspace) -> Outcome:
    """Do a cell in this process unless it is done; note an error, and do not raise it."""
    ledger = Ledger(workspace.folder)
    with ledger.lock(cell):
        if ledger.can_be_used(cell):
            return Outcome(cell.key)
        try:
            _do(cell, ledger, workspace)
        except Exception as error:
            reason = str(error) if isinstance(error, SmidgenError) else repr(error)
            ledger.note_failure(cell, reason, traceback.format_exc())
            return Outcome(cell.key, reason)
    return Outcome(cell.key)


def _do(cell: Cell, ledger: Ledger, workspace: Workspace) -> None:
    work = ledger.work(cell)
    made = work / "artifact"
    # An earlier try that ended before its record was written may have left one.
    shutil.rmtree(made, ignore_errors=True)
    # Only the process that does the cell knows which devices there are.
    device = "cpu" if cell.on_processor else str(find_device(workspace.device))
    job = Job(
        data=cell.parsed_data,
        seed=cell.seed,
        settings=cell.parsed_settings,
        root=workspace.data,
        needs=tuple(ledger.finished(need) for need in cell.needs),
        artifact=made,
        work=work,
        device=device,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", SmidgenWarning)
        results = find_kind(cell.kind).run(job)
    notes = dict.fromkeys(str(warning.message) for warning in caught)
    config = {
        "title": f"{cell.data.get('name')}, seed {cell.seed}: {cell.name}",
        "cell": cell.name,
        "kind": cell.kind,
        "protocol": PROTOCOL,
        "key": cell.key,
        "data": dict(cell.data),
        **({"test_to_train": cell.test_to_train} if cell.test_to_train else {}),
        "files": file_digests(cell.data, workspace.data),
        "settings": dict(cell.settings),
        "defaults": cell.defaults,
        "needs": [need.key for need in cell.needs],
        "artifact": made.is_dir(),
        "device": device,
    }
    record = Record("cell", config, {**results, "notes": list(notes)}, seed=cell.seed)
    ledger.finish(cell, record, made)
