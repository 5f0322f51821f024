"""Printing to the terminal: steps, tables, notes and errors."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from smidgen.runtime.files import write_text
from smidgen.runtime.record import Record

out = Console(highlight=False)
_HEADINGS = {
    "fraction": "weights",
    "accuracy": "accuracy",
    "nll": "NLL",
    "rmse": "RMSE",
    "coverage": "coverage",
    "ece_equal_mass": "ECE",
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
        texts = [f"[bold]{c.text}[/bold]" if c.best else c.text for c in cells]
        table.add_row(escape(row.label), *[row.size] * sized, *texts)
    out.print()
    out.print(table)
    out.print()
    for line in verdict(record):
        out.print(f"• {escape(line)}")


def write_json(path: Path | None, content: Mapping[str, Any]) -> None:
    """Write the results of a command as JSON, if a file was named."""
    if path is not None:
        write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
        out.print(f"wrote {escape(str(path))}")
