"""Rows handed over in Python, read as those of a file are: the same cells, checks and scaling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from smidgen.errors import DataError, how_to_add_column
from smidgen.integrations.arrays import as_pixels
from smidgen.integrations.labels import format_label
from smidgen.integrations.reading.given_cells import name_cells, require_texts
from smidgen.integrations.reading.images import (
    ImageSet,
    as_picture_bytes,
    check_images,
    read_pictures,
)
from smidgen.integrations.reading.scaling import CategoryColumn, NumberColumn
from smidgen.integrations.reading.task_note import TaskNote
from smidgen.runtime.importing.foreign_tables import name_table, read_foreign_columns
from smidgen.workflows.run.dividing import TaskRows
from smidgen.workflows.run.rows import make_rows

_WHERE = "rows"
_SINGLE = (str, bytes, Mapping, Path)


def read_given_rows(note: TaskNote, rows: object) -> TaskRows:
    """Read rows that are in memory as training read its own.

    Args:
        note: What training saw.
        rows: Texts: a list of texts, of tuples with a text for each column, or of dicts by
            column. A table: a list of dicts, or rows of two axes in the columns' order.
            Images: an array (number, height, width[, channels]), or a list of arrays, of
            pictures or of their paths. All kinds but images may be a DataFrame or a
            `datasets.Dataset`.

    Returns:
        The rows.

    Raises:
        DataError: If a row cannot be used; the message names it, counted from 1.
    """
    if isinstance(rows, _SINGLE):
        kind = "dict" if isinstance(rows, Mapping) else type(rows).__name__
        raise DataError(
            f"rows must be a list of rows, got a single {kind}. Put it into a list."
        )
    if note.kind == "images":
        return _read_images(note, rows)
    columns = _find_columns(note, rows)
    for name, cells in columns.items():
        if not len(cells):
            raise DataError("rows must hold at least one row, got none. Give some.")
        columns[name] = [_make_plain(cell) for cell in cells]
    if note.kind == "text":
        for number, cells in enumerate(zip(*columns.values(), strict=True), 1):
            named = dict(zip(columns, cells, strict=True))
            require_texts(named, note.columns, note.text_pair, f"row {number}")
    else:
        _settle_flags(note, columns)
    return make_rows(note, columns, _WHERE, None)


def list_row_columns(note: TaskNote) -> tuple[str, ...]:
    """List the columns that a row of a task has, the second text of a pair last."""
    return note.columns if note.text_pair is None else (*note.columns, note.text_pair)


def _find_columns(note: TaskNote, rows: Any) -> dict[str, Sequence[Any]]:
    """Find the values of each column, whatever holds them."""
    needed = list_row_columns(note)
    if name_table(rows) is not None:
        return _take_columns(needed, read_foreign_columns(rows)[0])
    if hasattr(rows, "columns"):
        # Some of these yield the names of their columns.
        raise DataError(
            f"rows must be a DataFrame of pandas or a list of rows, got {type(rows).__name__}. "
            "Convert it, such as with rows.to_pandas()."
        )
    if isinstance(rows, Tensor):
        rows = rows.detach().cpu().numpy()
    if hasattr(rows, "tolist"):
        rows = rows.tolist()
    if not isinstance(rows, Iterable):
        raise DataError(
            f"rows must be a list of rows, got {type(rows).__name__}. Put it into a list."
        )
    listed = [
        name_cells(row, needed, f"row {number}") for number, row in enumerate(rows, 1)
    ]
    return {name: [row[name] for row in listed] for name in needed}


def _take_columns(
    needed: Sequence[str], columns: Mapping[str, Sequence[Any]]
) -> dict[str, Sequence[Any]]:
    for name in needed:
        if name not in columns:
            raise DataError(
                f"rows must have the column {name!r}, as in training, got "
                f"{', '.join(columns)}. {how_to_add_column(name, columns)}"
            )
    return {name: columns[name] for name in needed}


def _make_plain(cell: Any) -> Any:
    """Turn a number of numpy or pandas into Python's; what pandas calls missing is None."""
    if type(cell).__name__ in ("NAType", "NaTType"):
        return None
    return cell.item() if isinstance(cell, np.generic) else cell


def _settle_flags(note: TaskNote, columns: dict[str, Sequence[Any]]) -> None:
    """Write True and False as the file of training did: as words, or as 1 and 0."""
    for column in () if note.scaling is None else note.scaling.columns:
        cells = columns[column.name]
        if not any(isinstance(cell, bool) for cell in cells):
            continue
        if isinstance(column, NumberColumn):
            written: dict[bool, Any] = {False: 0.0, True: 1.0}
        else:
            written = {flag: _find_written(flag, column) for flag in (False, True)}
        columns[column.name] = [
            written[cell] if isinstance(cell, bool) else cell for cell in cells
        ]


def _find_written(flag: bool, column: CategoryColumn) -> str:
    known = {value.casefold(): value for value in reversed(column.values)}
    return known.get(str(flag).casefold(), str(flag))


def _read_images(note: TaskNote, rows: Any) -> ImageSet:
    assert note.shape is not None
    if isinstance(rows, Tensor):
        rows = rows.detach().cpu().numpy()
    if not isinstance(rows, np.ndarray):
        if not isinstance(rows, Iterable):
            raise DataError(
                f"rows must be a list of images, got {type(rows).__name__}. Put it into a "
                "list."
            )
        rows = list(rows)
    if not len(rows):
        raise DataError("rows must hold at least one image, got none. Give some.")
    if isinstance(rows, list) and isinstance(rows[0], str | Path):
        return _read_paths(note.shape, rows)
    pixels = rows if isinstance(rows, np.ndarray) else _stack(note.shape, rows)
    if pixels.dtype.kind not in "uif":
        raise DataError(
            f"rows must be images of numbers, got {pixels.dtype}. Convert them."
        )
    images = ImageSet(as_pixels(pixels))
    unknown = ~images.inputs.flatten(1).isfinite().all(1)
    if unknown.any():
        raise DataError(
            f"row {int(unknown.nonzero()[0]) + 1} must be an image of finite numbers, got NaN "
            "or infinity. Leave it out."
        )
    check_images(images, note.shape, note.span, _WHERE)
    return images


def _read_paths(shape: Sequence[int], rows: Sequence[Any]) -> ImageSet:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, str | Path) or not Path(row).is_file():
            raise DataError(
                f"row {number} must be the path of a picture, as the first, got "
                f"{format_label(row)}. Check its name."
            )
    return read_pictures([Path(row) for row in rows], tuple(shape), tuple(map(str, rows)))


def _stack(shape: Sequence[int], rows: Sequence[Any]) -> np.ndarray:
    """Stack arrays or pictures of one shape."""
    arrays: list[np.ndarray] = []
    for number, row in enumerate(rows, 1):
        if isinstance(row, Tensor):
            row = row.detach().cpu()
        is_picture = hasattr(row, "convert") and hasattr(row, "resize")
        try:
            array = as_picture_bytes(row, tuple(shape)) if is_picture else np.asarray(row)
        except ValueError as error:
            raise DataError(
                f"row {number} must be an image of numbers, got {format_label(error)}. Give "
                "an array (height, width) or (height, width, channels)."
            ) from error
        if arrays and array.shape != arrays[0].shape:
            raise DataError(
                f"row {number} must be an image of shape {arrays[0].shape}, as the first, "
                f"got {array.shape}. Scale it first."
            )
        arrays.append(array)
    return np.stack(arrays)
