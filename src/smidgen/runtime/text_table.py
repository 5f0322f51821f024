"""Tables as plain text, columns aligned."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def format_table(cells: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Write rows of cells below each other.

    Args:
        cells: Rows of equal length, headings first.
        left: The columns that are aligned to the left; all others are to the right.

    Returns:
        The lines.
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)
