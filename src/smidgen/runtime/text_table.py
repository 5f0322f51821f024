"""Tables as plain text, columns aligned."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def format_table(cells: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Align rows of cells, headings first: `left` columns to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)
