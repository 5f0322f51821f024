"""Cells of rows that somebody hands over, in Python or over HTTP: whose they are, and texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from smidgen.errors import DataError, how_to_add_column
from smidgen.integrations.labels import format_label

_SHOWN = 20


def name_cells(row: Any, names: Sequence[str], where: str) -> Mapping[str, Any]:
    """Give each cell of a row the name of its column.

    Args:
        row: Cells by column, of which there may be more; a cell for each column, in their
            order; or the only cell, if it is a text.
        names: The columns.
        where: What the row is called in errors.

    Returns:
        The cells by column.

    Raises:
        DataError: If a column is missing, or there are too few cells or too many.
    """
    if isinstance(row, Mapping):
        for name in names:
            if name not in row:
                found = [*islice(row, _SHOWN)]
                raise DataError(
                    f"{where} must have the column {name!r}, as in training, got "
                    f"{', '.join(map(format_label, found)) or 'none'}. "
                    f"{how_to_add_column(name, map(str, found))}"
                )
        return row
    cells = [row] if isinstance(row, str) else row
    if isinstance(cells, np.ndarray):
        cells = cells.tolist()
    if not isinstance(cells, list | tuple) or len(cells) != len(names):
        got = len(cells) if isinstance(cells, list | tuple) else format_label(row)
        raise DataError(
            f"{where} must have a value for each of {len(names)} columns "
            f"({', '.join(names)}), got {got}. Give them in this order, or by column."
        )
    return dict(zip(names, cells, strict=True))


def require_texts(
    cells: Mapping[str, Any], columns: Sequence[str], pair: str | None, where: str
) -> None:
    """Refuse a row without a text, or with something else in its place.

    Args:
        cells: The row by column; None and NaN are gaps.
        columns: The columns that are read as one text: some may be empty, but not all.
        pair: The column of a second text, which may not be empty.
        where: What the row is called in errors.

    Raises:
        DataError: If it cannot be used.
    """
    for names in [columns] if pair is None else [columns, (pair,)]:
        is_empty = True
        for name in names:
            cell = cells[name]
            is_gap = cell is None or (isinstance(cell, float) and cell != cell)
            if not is_gap and not isinstance(cell, str):
                raise DataError(
                    f"{where} must have a text in {name!r}, got {format_label(cell)}. Write "
                    "it as a text."
                )
            is_empty &= is_gap or not cell.strip()
        if is_empty:
            raise DataError(
                f"{where} must have a text in {' or '.join(map(repr, names))}, got none. "
                "Fill or remove the row."
            )
