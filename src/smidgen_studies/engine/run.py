"""Running a study: every cell that is missing, those that others need first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from smidgen.errors import ArgumentError, did_you_mean
from smidgen_studies.engine.cell import Cell
from smidgen_studies.engine.ledger import Ledger
from smidgen_studies.engine.study import Resources, Study
from smidgen_studies.engine.workers.base import Engine
from smidgen_studies.kinds import check_settings, defaults_of, methods_of, on_processor

Told = Callable[[Cell, str], None]


@dataclass(frozen=True)
class Finished:
    """What a run came to: cells it did, that failed, and that wait for those."""

    done: tuple[Cell, ...]
    failed: tuple[Cell, ...]
    waiting: tuple[Cell, ...]


def run_study(
    study: Study, ledger: Ledger, engine: Engine, *, tell: Told = lambda *_: None
) -> Finished:
    """Do all cells that are missing; those that failed before are tried again.

    Args:
        study: The study.
        ledger: Where its records are.
        engine: What does the cells; it is closed at the end.
        tell: Told of each cell that ended, and its error if it has one.

    Returns:
        What was done now.
    """
    try:
        ledger.check()
        missing = missing_cells(study, ledger)
        check_all(missing)
        return _run({cell.key: cell for cell in missing}, ledger, engine, tell)
    finally:
        engine.close()


def check_all(cells: Sequence[Cell]) -> None:
    """Refuse cells that their kinds could not do; seeds differ in nothing that matters."""
    for cell in {(c.kind, c.name, c.data.get("name")): c for c in cells}.values():
        check_settings(cell)


def refuse_strange_baseline(study: Study) -> None:
    """Refuse to compare with a method that no cell of a study reports.

    Args:
        study: The study.

    Raises:
        ArgumentError: If it says so.
    """
    known: dict[str, None] = {}
    for cell in study.cells if study.baseline else ():
        found = methods_of(cell)
        if found is None:
            # Who knows what a kind of somebody's own reports.
            return
        known |= dict.fromkeys(found)
    if known and study.baseline and study.baseline not in known:
        raise ArgumentError(
            f"baseline of {study.name!r} must be a method that its profile "
            f"{study.profile} reports, got {study.baseline!r}. There are "
            f"{', '.join(known)}.{did_you_mean(study.baseline, known)}"
        )


def refuse_other_defaults(study: Study, ledger: Ledger) -> None:
    """Refuse to go on with records that were made under other defaults of their kinds.

    A key is of what a study says; what it leaves to its kinds is in the records.

    Args:
        study: The study.
        ledger: Where its records are.

    Raises:
        ArgumentError: If a default has changed since a record was made.
    """
    for cell in filter(ledger.is_done, study.cells):
        before = ledger.record(cell).config.get("defaults", {})
        now = defaults_of(cell) if before else {}
        for name in sorted(before.keys() & now.keys()):
            if before[name] != now[name]:
                raise ArgumentError(
                    f"{name} of the cells {cell.name!r} was {before[name]!r} when "
                    f"{ledger.record_path(cell)} was made and would be {now[name]!r} now. "
                    "Say it in the study's file, remove the record, or pass another --out."
                )


def missing_cells(study: Study, ledger: Ledger) -> list[Cell]:
    """List the cells to be done: without a record, or needed by those and lost."""
    missing: dict[str, Cell] = {}

    def visit(cell: Cell, *, used: bool) -> None:
        there = ledger.can_be_used(cell) if used else ledger.is_done(cell)
        if there or cell.key in missing:
            return
        for each in cell.needs:
            visit(each, used=True)
        missing[cell.key] = cell

    for cell in study.cells:
        visit(cell, used=False)
    return list(missing.values())


def resources_for(cells: Sequence[Cell], needed: Resources) -> Resources:
    """What a worker needs to do some cells: no device if none of them leaves the processor.

    Args:
        cells: The cells.
        needed: What their study says, or who runs it.

    Returns:
        The same, with the processor for a device that nobody would work on: an engine
        does one cell at a time for each of those.
    """
    if all(on_processor(cell.kind) for cell in cells):
        return replace(needed, device="cpu")
    return needed


def _run(missing: dict[str, Cell], ledger: Ledger, engine: Engine, tell: Told) -> Finished:
    left, running = dict(missing), 0
    done: list[Cell] = []
    failed: list[Cell] = []
    ended: set[str] = set()
    while True:
        ready = [
            cell
            for cell in left.values()
            if all(each.key in ended or each.key not in missing for each in cell.needs)
        ]
        # Another run on this folder may be at some of them: whoever takes those only waits.
        for cell in sorted(ready, key=ledger.is_running):
            if not engine.has_room():
                break
            engine.start(left.pop(cell.key))
            running += 1
        if not running:
            return Finished(tuple(done), tuple(failed), tuple(left.values()))
        for outcome in engine.wait():
            running -= 1
            cell = missing[outcome.key]
            (failed if outcome.error else done).append(cell)
            if not outcome.error:
                ended.add(outcome.key)
            tell(cell, outcome.error)
