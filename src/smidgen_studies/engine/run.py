"""Running a study: all missing cells, those that others need first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from smidgen.errors import ArgumentError, did_you_mean
from smidgen_studies.engine.cell import Cell
from smidgen_studies.engine.data_files import refuse_changed_files, require_files
from smidgen_studies.engine.ledger import Ledger
from smidgen_studies.engine.study import Resources, Study
from smidgen_studies.engine.workers.base import Engine

OnEnd = Callable[[Cell, str], None]
"""Called with each cell that has ended, and its error or ""."""


@dataclass(frozen=True)
class RunResult:
    """The cells that a run did, and those that failed."""

    done: tuple[Cell, ...]
    failed: tuple[Cell, ...]


def check_study(study: Study, ledger: Ledger, data: Path | None) -> list[Cell]:
    """Refuse a study that cannot be run; list the cells to do, needed ones first."""
    ledger.check()
    missing = missing_cells(study, ledger)
    for cell in missing:
        check_cell(cell)
    refuse_changed_files(study.cells, ledger, data)
    refuse_changed_defaults(study, ledger)
    refuse_unknown_baseline(study)
    require_files(missing, data)
    return missing


def check_cell(cell: Cell) -> None:
    """Refuse a cell whose kind does not know its settings or the description of its data."""
    # Parsing checks them, and both are kept for the run.
    _ = cell.parsed_settings, cell.parsed_data


def run_cells(
    missing: Sequence[Cell],
    ledger: Ledger,
    engine: Engine,
    *,
    on_end: OnEnd = lambda *_: None,
) -> RunResult:
    """Do cells as `check_study` lists them; the engine is closed at the end."""
    todo = {cell.key: cell for cell in missing}
    left, running = dict(todo), 0
    done: dict[str, Cell] = {}
    failed: list[Cell] = []
    with closing(engine):
        while True:
            ready = [
                cell
                for cell in left.values()
                if all(need.key in done or need.key not in todo for need in cell.needs)
            ]
            # Cells that another run on this folder is doing come last: they would block.
            for cell in sorted(ready, key=ledger.is_running):
                if not engine.has_room():
                    break
                engine.start(left.pop(cell.key))
                running += 1
            if not running:
                return RunResult(tuple(done.values()), tuple(failed))
            for outcome in engine.wait():
                running -= 1
                cell = todo[outcome.key]
                if outcome.error:
                    failed.append(cell)
                else:
                    done[cell.key] = cell
                on_end(cell, outcome.error)


def pack_if_done(study: Study, ledger: Ledger) -> None:
    """Move the records of a study into one file if all its cells are done."""
    ledger.sweep(study.cells)
    if all(map(ledger.is_done, study.cells)):
        ledger.pack(study.name, study.cells)


def refuse_unknown_baseline(study: Study) -> None:
    """Refuse to compare with a method that no cell of a study reports."""
    methods: dict[str, None] = {}
    for cell in study.cells if study.baseline else ():
        if cell.reported_methods is None:
            # A user's kind need not name its methods.
            return
        methods |= dict.fromkeys(cell.reported_methods)
    if methods and study.baseline and study.baseline not in methods:
        raise ArgumentError(
            f"baseline of {study.name!r} must be a method that its profile "
            f"{study.profile} reports, got {study.baseline!r}. There are "
            f"{', '.join(methods)}.{did_you_mean(study.baseline, methods)}"
        )


def refuse_changed_defaults(study: Study, ledger: Ledger) -> None:
    """Refuse to continue from records that were made under other defaults of their kinds."""
    # A key hashes what a study's file says; what it leaves to the kinds is in the records.
    for cell in filter(ledger.is_done, study.cells):
        before = ledger.record(cell).config.get("defaults", {})
        now = cell.defaults if before else {}
        for name in sorted(before.keys() & now.keys()):
            if before[name] != now[name]:
                raise ArgumentError(
                    f"{name} of the cells {cell.name!r} was {before[name]!r} when the "
                    f"records in {ledger.folder} were made and would be {now[name]!r} now. "
                    "Set it in the study's file, or pass another --out."
                )


def missing_cells(study: Study, ledger: Ledger) -> list[Cell]:
    """List the cells to do: those without a record, and lost ones that these need."""
    missing: dict[str, Cell] = {}

    def visit(cell: Cell, *, used: bool) -> None:
        there = ledger.can_be_used(cell) if used else ledger.is_done(cell)
        if there or cell.key in missing:
            return
        for need in cell.needs:
            visit(need, used=True)
        missing[cell.key] = cell

    for cell in study.cells:
        visit(cell, used=False)
    return list(missing.values())


def resources_for(cells: Sequence[Cell], resources: Resources) -> Resources:
    """Ask for no device if all cells stay on the processor."""
    # An engine runs one cell at a time on every other device.
    if all(cell.on_processor for cell in cells):
        return replace(resources, device="cpu")
    return resources
