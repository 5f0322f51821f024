"""What an engine is: something that does cells, several at once, and tells how it went."""

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
from smidgen_studies.engine.data_files import digests
from smidgen_studies.engine.ledger import Ledger
from smidgen_studies.kinds import defaults_of, kind_of, on_processor


@dataclass(frozen=True)
class Outcome:
    """How a cell went: `error` is empty if it is done."""

    key: str
    error: str = ""


@dataclass(frozen=True)
class Place:
    """Where cells find their data, leave their records, and have their models."""

    folder: Path
    data: Path | None = None
    device: str = "cpu"


class Engine(Protocol):
    """Does cells, several at once."""

    def has_room(self) -> bool:
        """Say whether another cell could be started now."""
        ...

    def start(self, cell: Cell) -> None:
        """Start a cell whose needs are done."""
        ...

    def wait(self) -> Sequence[Outcome]:
        """Wait until a cell has ended, well or not."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...


def do_cell(cell: Cell, place: Place) -> Outcome:
    """Do a cell in this process, and leave its record or why there is none.

    Args:
        cell: The cell; one that is done by now is left alone.
        place: Where its data are and its record goes.

    Returns:
        How it went; errors are noted, not raised.
    """
    ledger = Ledger(place.folder)
    with ledger.held(cell):
        if ledger.can_be_used(cell):
            return Outcome(cell.key)
        try:
            _do(cell, ledger, place)
        except Exception as error:
            said = str(error) if isinstance(error, SmidgenError) else repr(error)
            ledger.note_failure(cell, said, traceback.format_exc())
            return Outcome(cell.key, said)
    return Outcome(cell.key)


def _do(cell: Cell, ledger: Ledger, place: Place) -> None:
    work = ledger.work(cell)
    made = work / "artifact"
    # A try that ended before its record was written may have left one.
    shutil.rmtree(made, ignore_errors=True)
    # Here and not before: only who does the cell knows which devices there are.
    device = "cpu" if on_processor(cell.kind) else str(find_device(place.device))
    job = Job(
        data=cell.data,
        seed=cell.seed,
        settings=cell.settings,
        root=place.data,
        needs=tuple(ledger.found(each) for each in cell.needs),
        artifact=made,
        work=work,
        device=device,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", SmidgenWarning)
        results = kind_of(cell.kind)(job)
    notes = dict.fromkeys(str(each.message) for each in caught)
    config = {
        "title": f"{cell.data.get('name')}, seed {cell.seed}: {cell.name}",
        "cell": cell.name,
        "kind": cell.kind,
        "key": cell.key,
        "data": dict(cell.data),
        **({"test_to_train": cell.test_to_train} if cell.test_to_train else {}),
        "files": digests(cell.data, place.data),
        "settings": dict(cell.settings),
        "defaults": defaults_of(cell),
        "needs": [each.key for each in cell.needs],
        "artifact": made.is_dir(),
        "device": device,
    }
    record = Record("cell", config, {**results, "notes": list(notes)}, seed=cell.seed)
    ledger.finish(cell, record, made)
