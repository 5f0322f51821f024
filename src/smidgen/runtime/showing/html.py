"""What is printed, for notebooks: the same words and tables as small HTML, escaped.

Colours are the notebook's own, so it reads in light and in dark. Styles stand in the
elements, because some notebooks drop everything else.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from smidgen.runtime.text_table import format_table

_BOX = "font-family:monospace;font-size:0.92em;line-height:1.45;max-width:76em"
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere"
_TABLE = "border-collapse:collapse;margin:0.4em 0;font-size:1em;color:inherit"
_CELL = (
    "padding:0.15em 1.2em 0.15em 0;border:0;background:transparent;"
    "border-bottom:1px solid rgba(128,128,128,0.45)"
)


@dataclass(frozen=True)
class PrintedTable:
    """Rows of cells, headings first: `left` columns to the left, all others to the right."""

    rows: Sequence[Sequence[str]]
    left: Collection[int] = (0,)


Printed = str | PrintedTable
"""A line, several lines, or a table."""


class ShownInNotebook:
    """A value that notebooks show as it is printed."""

    def printed_parts(self) -> Iterable[Printed]:
        """List what is printed, from top to bottom."""
        return (str(self),)

    def _repr_html_(self) -> str:
        return format_html(self.printed_parts())


class ShownAsTable(ShownInNotebook):
    """A value with tables among what is printed: `printed_parts` says what, and in what order."""

    def __str__(self) -> str:
        return format_text(self.printed_parts())


def format_text(parts: Iterable[Printed]) -> str:
    """Write parts one below the other, tables with their columns aligned."""
    return "\n".join(
        part if isinstance(part, str) else format_table(part.rows, part.left)
        for part in parts
    )


def format_html(parts: Iterable[Printed]) -> str:
    """Write parts as one HTML element; whatever they hold is escaped."""
    written = (
        # pre-wrap keeps the printed form's indents, and still breaks what is too long.
        f'<div style="{_TEXT}">{html.escape(part)}</div>'
        if isinstance(part, str)
        else _format_table(part)
        for part in parts
        # Tables have a margin of their own.
        if part != ""
    )
    return f'<div style="{_BOX}">{"".join(written)}</div>'


def _format_table(table: PrintedTable) -> str:
    headings, *others = table.rows
    head = _format_row(headings, "th", table.left)
    body = "".join(_format_row(row, "td", table.left) for row in others)
    return f'<table style="{_TABLE}"><thead>{head}</thead><tbody>{body}</tbody></table>'


def _format_row(cells: Sequence[str], kind: str, left: Collection[int]) -> str:
    written = "".join(
        f'<{kind} style="{_CELL};text-align:{"left" if number in left else "right"}">'
        f"{html.escape(cell)}</{kind}>"
        for number, cell in enumerate(cells)
    )
    return f'<tr style="background:transparent">{written}</tr>'
