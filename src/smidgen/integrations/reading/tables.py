"""Tables of numbers and categories: rows to predict a class or a number from."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smidgen.errors import ArgumentError, DataError, did_you_mean, how_to_add_column
from smidgen.integrations.arrays import load_npz
from smidgen.integrations.labels import Labels, format_label
from smidgen.integrations.reading.columns import (
    Chosen,
    FileColumns,
    list_chosen,
    read_columns,
)
from smidgen.integrations.reading.scaling import FeatureCell

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-", "#n/a", "<na>"})
_FEW_TEXTS = 0.1
"""A column with so small a part of texts among its numbers is one of numbers with a mistake."""
_UNNAMED = re.compile(r"Unnamed: [0-9]+|__index_level_[0-9]+__")
_LEAST_COUNTED = 20
NPZ_LABEL = "y"
"""The name of the label of an .npz, whose other columns are named by their numbers."""


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Cells by column as they were read, with a class number or a number for each row."""

    cells: Mapping[str, tuple[FeatureCell, ...]]
    labels: Labels | None = None
    label_names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.cells.values())))

    def take(self, rows: Sequence[int]) -> FeatureTable:
        """Take some rows, in this order."""
        return FeatureTable(
            {
                name: tuple(column[row] for row in rows)
                for name, column in self.cells.items()
            },
            None if self.labels is None else tuple(self.labels[row] for row in rows),
            self.label_names,
        )

    def keys(self) -> list[tuple[Hashable, ...]]:
        """List what makes each row the same as another: all of its cells."""
        return [(row,) for row in zip(*self.cells.values(), strict=True)]


def read_table_columns(path: Path, chosen: Chosen) -> FileColumns:
    """Read the columns of a table: delimited text, JSON, Parquet, or the arrays of an .npz.

    Args:
        path: The file.
        chosen: The columns that must be there, by what asks for each.

    Returns:
        The columns. Those of an .npz are numbered, and its label is "y".

    Raises:
        ArgumentError: If a column is not there.
        DataError: If the file cannot be read, or its arrays are no table.
    """
    if path.suffix.lower() != ".npz":
        return read_columns(path, chosen)[0]
    inputs, labels = load_npz(path)
    if inputs.ndim != 2:
        raise DataError(
            f"{path} must hold a table (rows, columns), got inputs of shape {inputs.shape}. "
            "Pass --images if these are images."
        )
    columns: dict[str, Sequence[Any]] = {
        str(index): np.asarray(inputs[:, index], dtype=np.float64).tolist()
        for index in range(inputs.shape[1])
    }
    if labels is not None:
        columns[NPZ_LABEL] = labels.tolist()
    for argument, name in list_chosen(chosen):
        if str(name) not in columns:
            raise ArgumentError(
                f"{argument} must be one of the columns of {path.name} (numbers from 0, and "
                f"{NPZ_LABEL!r}), got {name!r}.{did_you_mean(str(name), columns) or ' Name one.'}"
            )
    return columns


def make_feature_table(
    columns: FileColumns,
    names: Sequence[str],
    path: Path | str,
    *,
    labels: Labels | None = None,
    label_names: tuple[str, ...] | None = None,
) -> FeatureTable:
    """Parse the cells of some columns.

    Args:
        columns: The columns of the file.
        names: Which of them to use; all must be there.
        path: The file, or what else holds the rows, for errors.
        labels: The labels of the rows, where they are known.
        label_names: The names of the classes.

    Returns:
        The table.

    Raises:
        DataError: If a column is missing, or a cell cannot be used.
    """
    for name in names:
        if name not in columns:
            raise DataError(
                f"{path} must have the column {name!r}, as in training, got "
                f"{', '.join(columns)}. {how_to_add_column(name, columns)}"
            )
    if not names:
        raise DataError(
            f"{path} must have a column besides the label, got none. Add columns to predict "
            "from."
        )
    cells = {
        name: tuple(
            _parse_cell(value, name, row, path)
            for row, value in enumerate(columns[name], 1)
        )
        for name in names
    }
    return FeatureTable(cells, labels, label_names)


def refuse_stray_texts(table: FeatureTable, path: Path) -> None:
    """Refuse a few texts among numbers, which would make categories of them all."""
    for name, column in table.cells.items():
        texts = [row for row, cell in enumerate(column) if isinstance(cell, str)]
        present = sum(cell is not None for cell in column)
        if texts and len(texts) < _FEW_TEXTS * present:
            raise DataError(
                f"column {name!r} must be numbers or categories, got "
                f"{format_label(column[texts[0]])} in row {texts[0] + 1} of {path} where "
                f"{present - len(texts)} other rows have numbers. Fix the row, empty the "
                f"cell, or pass --leave-out {name!r}."
            )


def find_identifiers(table: FeatureTable) -> list[str]:
    """List columns of texts that differ in almost every row, from which nothing is learnt."""
    return [
        name
        for name, column in table.cells.items()
        if any(isinstance(cell, str) for cell in column)
        and len(set(column)) > max(20, len(column) // 2)
    ]


def find_row_numbers(table: FeatureTable) -> list[str]:
    """List columns that only count the rows of a file, in its order or another."""
    # Whole numbers that differ in every row do: under no name, or under any without a gap.
    return [
        name
        for name, column in table.cells.items()
        if len(column) >= _LEAST_COUNTED
        and all(isinstance(cell, float) and cell.is_integer() for cell in column)
        and len(set(column)) == len(column)
        and (_is_unnamed(name) or _has_no_gap(column))
    ]


def _is_unnamed(name: str) -> bool:
    # As pandas writes the index of a frame.
    return not name.strip() or bool(_UNNAMED.fullmatch(name))


def _has_no_gap(column: Sequence[Any]) -> bool:
    return bool(max(column) - min(column) == len(column) - 1)


def _parse_cell(value: Any, name: str, row: int, path: Path | str) -> FeatureCell:
    try:
        return read_cell(value)
    except ValueError as error:
        raise DataError(
            f"column {name!r} must hold numbers or texts, got {format_label(value)} in row "
            f"{row} of {path}. Fix it, or leave the column out with --leave-out."
        ) from error


def read_cell(value: Any) -> FeatureCell:
    """Read one cell: a number, a category, or nothing.

    Args:
        value: What a file or a request holds.

    Returns:
        The cell.

    Raises:
        ValueError: If it is none of these.
    """
    if isinstance(value, str):
        text = value.strip()
        if text.casefold() in _MISSING:
            return None
        return _as_number(text, text) if _NUMBER.fullmatch(text) else text
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, int | float) and abs(value) <= sys.float_info.max:
        return float(value)
    raise ValueError("neither a number nor a text")


def _as_number(text: str, otherwise: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else otherwise
