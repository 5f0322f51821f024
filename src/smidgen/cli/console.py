"""Printing to the terminal: steps, tables, notes and errors."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from smidgen.runtime.files import write_text
from smidgen.runtime.record import Record

if TYPE_CHECKING:
    from smidgen.report.one_record.tables import Row

out = Console(highlight=False)
_CALIBRATION = "ece_equal_mass"
_HEADINGS = {
    "fraction": "weights",
    "accuracy": "accuracy",
    "nll": "NLL",
    "rmse": "RMSE",
    "coverage": "coverage",
    _CALIBRATION: "ECE",
    "floats": "floats stored",
    "relative_seconds": "time / forward",
}
err = Console(stderr=True, highlight=False, soft_wrap=True)


class Interrupted(Exception):
    """Ctrl-C, with a message of the command about how to continue."""


class Steps:
    """Prints each step with the seconds since the start."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    def __call__(self, step: str) -> None:
        """Print one step."""
        seconds = time.monotonic() - self.started
        out.print(f"[dim]{seconds:5.0f} s[/dim]  {escape(step)}")


def note(message: str) -> None:
    """Print a warning; the result is still valid."""
    err.print(f"[yellow]note:[/yellow] {escape(message)}")


def refuse(message: str) -> None:
    """Print why the program stops."""
    err.print(f"[red]smidgen:[/red] {escape(message)}")


def show_record(record: Record) -> None:
    """Print the table of a record and its verdict."""
    from smidgen.report import score_rows, verdict
    from smidgen.report.one_record.tables import list_columns
    from smidgen.report.one_record.verdict import list_sides

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    columns = list_columns(record)
    rows = score_rows(record)
    sized = any(row.size for row in rows)
    if sized:
        table.add_column("size", no_wrap=True)
    shown = [i for i, column in enumerate(columns) if column.score in _HEADINGS]
    for index in shown:
        heading = _HEADINGS[columns[index].score]
        # With a column of sizes, the others must be narrow to fit 80 characters.
        narrow = heading.removesuffix(" stored") if sized else heading
        table.add_column(narrow, justify="right", no_wrap=sized)
    for row in rows:
        cells = [row.cells[index] for index in shown]
        texts = [c.text if sized else c.plain_text for c in cells]
        texts = [
            f"[bold]{text}[/bold]" if cell.best else text
            for cell, text in zip(cells, texts, strict=True)
        ]
        table.add_row(escape(row.label), *[row.size] * sized, *texts)
    out.print()
    out.print(table)
    for line in _describe_floors(rows, sized):
        out.print(f"[dim]{line}[/dim]")
    out.print()
    for line in (*verdict(record), *list_sides(record)):
        out.print(f"• {escape(line)}")


def _describe_floors(rows: Sequence[Row], sized: bool) -> list[str]:
    """Say what chance alone gives: in brackets, or here if the table has no room."""
    cells = [cell for row in rows for cell in row.cells if cell.score == _CALIBRATION]
    floors = sorted(c.floor.text for c in cells if c.floor and c.floor.value is not None)
    if not floors:
        return []
    ends = " to ".join(dict.fromkeys((floors[0], floors[-1])))
    what = f"An ECE of {ends} is what" if sized else "In brackets: the ECE that"
    return [f"{what} a perfectly calibrated model would show on as many rows, by chance."]


def write_json(path: Path | None, content: Mapping[str, Any]) -> None:
    """Write the results of a command as JSON, if a file was named."""
    if path is not None:
        write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
        out.print(f"wrote {escape(str(path))}")
