"""Texts as scikit-learn's users have them: lists, arrays, columns and data frames."""

from __future__ import annotations

from typing import Any

import numpy as np

from smidgen.errors import ArgumentError, DataError
from smidgen.integrations.labels import format_label
from smidgen.integrations.text import join_row


def read_texts(
    X: Any, columns: tuple[str, ...] | None = None
) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """Read a text of each row.

    Args:
        X: A list, an array or a column of texts, or a data frame whose columns make one text.
        columns: The columns of the data frame that was fitted, if there was one.

    Returns:
        The texts, and the names of the columns if these have names.

    Raises:
        ArgumentError: If X is one text, or has other columns than those fitted.
        DataError: If a row has no text.
    """
    if isinstance(X, str | bytes):
        raise ArgumentError(
            f"X must be several texts, got one {type(X).__name__}. Put a single text into a "
            "list, [text]."
        )
    names = getattr(X, "columns", None)
    found = None if names is None else tuple(map(str, names))
    if columns is not None and found is not None and columns != found:
        raise ArgumentError(
            f"X must have the columns that were fitted, {', '.join(columns)}, got "
            f"{', '.join(found)}. Pass these, in that order."
        )
    cells = np.asarray(X, dtype=object)
    if cells.ndim not in (1, 2) or not len(cells) or 0 in cells.shape:
        raise DataError(
            "X must be a text for each row, or a data frame with a column of texts, got shape "
            f"{cells.shape}. Pass a list of texts."
        )
    rows = cells[:, None] if cells.ndim == 1 else cells
    return tuple(_join(row, number) for number, row in enumerate(rows)), found


def _join(row: Any, number: int) -> str:
    wrong = [cell for cell in row if not _is_text_or_gap(cell)]
    text = "" if wrong else join_row(row)
    if not text:
        got = format_label((wrong or row)[0])
        raise DataError(
            f"X must have a text in every row, got {got} in row {number} (rows are counted "
            "from 0). Fill or remove the row."
        )
    return text


def _is_text_or_gap(cell: Any) -> bool:
    # Data frames write what is missing as NaN, which is not even itself, or as pandas' NA and
    # NaT; NA is neither true nor false when it is compared.
    if type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return cell is None or isinstance(cell, str) or bool(cell != cell)
