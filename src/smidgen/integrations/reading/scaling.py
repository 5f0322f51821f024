"""`Scaling`: how the columns of a table become numbers, measured on training rows alone.

Numbers are standardised; missing ones are the training rows' median, with an indicator if
training rows had gaps. Categories have a place for each value of the training rows and one for
what those did not have. Nothing of it is pickled: it is small, and stored as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median, pstdev
from typing import Any

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DataError
from smidgen.integrations.labels import format_label
from smidgen.runtime.reading import make_from_json

FeatureCell = float | str | None
"""A number, a category, or nothing."""
_MOST_CATEGORIES = 100


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: its moments, what fills its gaps, and whether these are marked.

    Without a `median` there may be no gaps.
    """

    name: str
    mean: float
    spread: float
    median: float | None
    marked: bool

    @property
    def width(self) -> int:
        """How many inputs it makes."""
        return 1 + self.marked

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and the largest number that fp32 holds once it is standardised."""
        reach = torch.finfo(torch.float32).max * self.spread
        most = torch.finfo(torch.float64).max
        return max(self.mean - reach, -most), min(self.mean + reach, most)

    def encode(self, cells: Sequence[FeatureCell]) -> Tensor:
        """Standardise, (N, width)."""
        low, high = self.range
        for row, cell in enumerate(cells, 1):
            if isinstance(cell, str):
                raise DataError(
                    f"column {self.name!r} must be numbers, as in training, got "
                    f"{format_label(cell)} in row {row}. Fix the row, or leave the cell empty."
                )
            if cell is not None and not low <= cell <= high:
                raise DataError(
                    f"column {self.name!r} must be numbers from {low:.3g} to {high:.3g}, which "
                    f"fp32 can hold, got {cell:g} in row {row}. Mend the row."
                )
        if self.median is None and None in cells:
            raise DataError(
                f"column {self.name!r} must have a number in every row, got none in row "
                f"{cells.index(None) + 1}. Fill or remove the row."
            )
        gaps = torch.tensor([cell is None for cell in cells])
        filled = [self.median if cell is None else cell for cell in cells]
        numbers = (torch.tensor(filled, dtype=torch.float64) - self.mean) / self.spread
        columns = [numbers, gaps.double()] if self.marked else [numbers]
        return torch.stack(columns, 1)


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories: a place for each, and a last one for all others."""

    name: str
    values: tuple[str, ...]

    @property
    def width(self) -> int:
        """How many inputs it makes."""
        return len(self.values) + 1

    def encode(self, cells: Sequence[FeatureCell]) -> Tensor:
        """Put a one in each row's place, (N, width)."""
        places = {value: place for place, value in enumerate(self.values)}
        rows = [places.get(name_category(cell), len(self.values)) for cell in cells]
        return torch.eye(self.width, dtype=torch.float64)[rows]


@dataclass(frozen=True)
class Scaling:
    """The columns of a table, in order, and how each becomes numbers."""

    columns: tuple[NumberColumn | CategoryColumn, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def width(self) -> int:
        """How many inputs a row has."""
        return sum(column.width for column in self.columns)

    def encode(self, cells: Mapping[str, Sequence[FeatureCell]]) -> Tensor:
        """Turn the columns of a table into inputs, (N, width), in fp32."""
        parts = [column.encode(cells[column.name]) for column in self.columns]
        return torch.cat(parts, 1).float()

    def to_json(self) -> list[dict[str, Any]]:
        """List the columns as JSON values."""
        return [asdict(column) for column in self.columns]

    @classmethod
    def from_json(cls, values: object) -> Scaling:
        """Read what `to_json` wrote."""
        if not isinstance(values, list):
            raise ArgumentError("scaling must be a list of columns. Train the model again.")
        return cls(
            tuple(
                make_from_json(CategoryColumn, value)
                if "values" in value
                else make_from_json(NumberColumn, value)
                for value in values
            )
        )


def measure_scaling(cells: Mapping[str, Sequence[FeatureCell]]) -> Scaling:
    """Measure how columns become numbers, on the cells of training rows.

    Args:
        cells: The training rows' cells of each column.

    Returns:
        The scaling. A column without a single value has nothing to say and is left out.

    Raises:
        DataError: If no column is left.
    """
    columns: list[NumberColumn | CategoryColumn] = []
    for name, column in cells.items():
        present = [cell for cell in column if cell is not None]
        if not present:
            continue
        if any(isinstance(cell, str) for cell in present):
            counts = Counter(map(name_category, present))
            # The commonest, and among equals by name: the same for every order of rows.
            common = sorted(counts, key=lambda value: (-counts[value], value))
            columns.append(CategoryColumn(name, tuple(sorted(common[:_MOST_CATEGORIES]))))
        else:
            numbers = [cell for cell in present if isinstance(cell, float)]
            spread = pstdev(numbers) or 1.0
            marked = len(present) < len(column)
            columns.append(
                NumberColumn(name, fmean(numbers), spread, median(numbers), marked)
            )
    if not columns:
        raise DataError(
            "the table must have a column besides the label, got none with values. Add "
            "columns to predict from."
        )
    return Scaling(tuple(columns))


def name_category(cell: FeatureCell) -> str:
    """Write a cell as the name of a category; a number as people write it."""
    return f"{cell:.12g}" if isinstance(cell, float) else str(cell)
