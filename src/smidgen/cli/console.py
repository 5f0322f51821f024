"""Printing to the terminal: steps, tables, notes and errors.

Names of classes and files, labels and texts come from others. Printed as they are, they
could colour the terminal, move its cursor or turn a line around, and square brackets would be
read as markup. So nothing that is printed is markup, and control characters are shown as
escapes. Files get every name as it is.

Not every terminal has all characters: a C locale has ASCII, Windows some old code page where
output goes to a file. What it lacks is spelled with what it has.
"""

from __future__ import annotations

import codecs
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from smidgen.report.one_record.tables import Row
    from smidgen.runtime.record import Record

# Control characters but newline and tab, what turns the direction of writing around, other
# ends of lines, and halves of characters: bytes of a file name that is not UTF-8.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

# Of a table that is written to a file, in characters.
_WIDEST = 10_000

# How to spell what a terminal has no character for; anything else becomes an escape.
_SPELLED = {
    **dict.fromkeys("–—−‐‑", "-"),
    **{"•": "*", "…": "...", "×": "x", "·": ".", "→": "->", "←": "<-", "±": "+/-"},
    **{"≤": "<=", "≥": ">=", "≈": "~", "τ": "tau", "σ": "sigma", "‘": "'", "’": "'"},
    **{"“": '"', "”": '"', "\u00a0": " ", "\u202f": " ", "²": "2", "½": "1/2"},
}
_SPELLING = "smidgen.spelling"


def spell_what_is_missing() -> None:
    """Let a terminal that cannot show every character print them all, in other words."""
    codecs.register_error(_SPELLING, _spell)
    for stream in (sys.stdout, sys.stderr):
        encoding = getattr(stream, "encoding", None) or "utf-8"
        if hasattr(stream, "reconfigure") and not encoding.lower().startswith("utf"):
            stream.reconfigure(errors=_SPELLING)


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    part = error.object[error.start : error.end]
    spelled = (_SPELLED.get(letter) or ascii(letter)[1:-1] for letter in part)
    return "".join(spelled), error.end


def clean(text: str) -> str:
    """Show control characters as escapes, so that a terminal does not obey them."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


class Terminal(Console):
    """A console that prints every text as it is, but for its control characters."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(
            stderr=stderr, soft_wrap=stderr, markup=False, emoji=False, highlight=False
        )

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a text, alone or in the cell of a table."""
        return super().render_str(clean(text), **options)

    def show(self, table: Table) -> None:
        """Print a table; into a file or a pipe, which have no width, all of it."""
        before = self._width
        if not self.is_terminal:
            widest = self.options.update(width=_WIDEST)
            self.width = max(self.width, self.measure(table, options=widest).maximum)
        try:
            self.print(table)
        finally:
            self._width = before

    def say(self, first: str, text: str, style: str) -> None:
        """Print a first word in a style and then one line."""
        line = clean(text).replace("\n", "\\n")
        self.print(Text.assemble((first, style), "  " if style == "dim" else " ", line))


out = Terminal()
err = Terminal(stderr=True)
_CALIBRATION = "ece_equal_mass"
_HEADINGS = {
    "fraction": "weights",
    "automation": "automated",
    "accuracy": "accuracy",
    "nll": "NLL",
    "rmse": "RMSE",
    "coverage": "coverage",
    _CALIBRATION: "ECE",
    "floats": "floats stored",
    "relative_seconds": "time / forward",
}


INTERRUPTED = 130
"""The status of a program that Ctrl-C ended; typer returns it too."""


class Interrupted(Exception):
    """Ctrl-C, with a message of the command about how to continue."""


class Steps:
    """Prints each step with the seconds since the start."""

    def __init__(self) -> None:
        self.started = time.monotonic()

    def __call__(self, step: str) -> None:
        """Print one step."""
        seconds = time.monotonic() - self.started
        out.say(f"{seconds:5.0f} s", step, "dim")


def note(message: str) -> None:
    """Print a warning; the result is still valid."""
    err.say("note:", message, "yellow")


def refuse(message: str) -> None:
    """Print why the program stops."""
    err.say("smidgen:", message, "red")


def show_record(record: Record) -> None:
    """Print the table of a record and its verdict."""
    from smidgen.report import score_rows, verdict
    from smidgen.report.one_record.tables import list_columns
    from smidgen.report.one_record.verdict import list_sides

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns = list_columns(record)
    rows = score_rows(record)
    sized = any(row.size for row in rows)
    table.add_column("", no_wrap=sized)
    if sized:
        table.add_column("size", no_wrap=True)
    shown = [i for i, column in enumerate(columns) if column.score in _HEADINGS]
    for index in shown:
        heading = _HEADINGS[columns[index].score]
        # With a column of sizes, the others must be narrow to fit 80 characters.
        narrow = heading.removesuffix(" stored") if sized else heading
        # Neither a heading nor a number is cut within a word.
        words = " ".join([narrow, *(row.cells[index].plain_text for row in rows)]).split()
        longest = max(map(len, words))
        table.add_column(narrow, justify="right", no_wrap=sized, min_width=longest)
    for row in rows:
        cells = [row.cells[index] for index in shown]
        texts = [
            Text(cell.text if sized else cell.plain_text, "bold" if cell.best else "")
            for cell in cells
        ]
        table.add_row(row.label, *[row.size] * sized, *texts)
    out.print()
    out.show(table)
    for line in (*_describe_automation(record), *_describe_floors(rows, sized)):
        out.print(Text(line, "dim"))
    out.print()
    choice = record.results.get("choice")
    account = [f"Chosen on held-out rows: {choice['verdict']}"] if choice else []
    for line in (*verdict(record), *list_sides(record), *account):
        out.print(f"• {line}")


def _describe_automation(record: Record) -> list[str]:
    """Say what the column of automated answers means, if there is one."""
    from smidgen.report.fields import read_max_error
    from smidgen.report.formats import format_share

    max_error = read_max_error(record)
    if max_error is None:
        return []
    return [
        "Automated: the share of answers that could at best be given without a person, "
        f"with at most {format_share(max_error)} errors among them."
    ]


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
    from smidgen.runtime.files import write_text

    if path is not None:
        write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
        out.print(f"wrote {path}")
