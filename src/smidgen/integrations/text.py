"""Text tables: sentences or pairs of sentences with their labels, from common files."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smidgen.errors import ArgumentError, DataError
from smidgen.integrations.labels import Labels, format_label, read_labels
from smidgen.integrations.reading.columns import FileColumns, name_source, read_columns

_BETWEEN = " . "
"""What stands between the columns that are read as one text."""


@dataclass(frozen=True)
class TextTable:
    """Texts in order, with what is known about them.

    Args:
        texts: The texts, or the first of each pair.
        pairs: The second text of each pair.
        labels: A class number or a regression target for each text.
        label_names: The name of each class, by class number.

    Raises:
        DataError: If the columns differ in length.
    """

    texts: tuple[str, ...]
    pairs: tuple[str, ...] | None = None
    labels: Labels | None = None
    label_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, column in (("pairs", self.pairs), ("labels", self.labels)):
            if column is not None and len(column) != len(self.texts):
                raise DataError(
                    f"{name} must be as many as the texts ({len(self.texts)}), got "
                    f"{len(column)}. Give one for each text."
                )

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def is_regression(self) -> bool:
        """Whether the labels are the targets of a regression."""
        return any(isinstance(label, float) for label in self.labels or ())

    def take(self, rows: Sequence[int]) -> TextTable:
        """Take some rows, in this order."""
        return TextTable(
            tuple(self.texts[i] for i in rows),
            None if self.pairs is None else tuple(self.pairs[i] for i in rows),
            None if self.labels is None else tuple(self.labels[i] for i in rows),
            self.label_names,
        )

    def classes(self, where: str) -> int:
        """Count the classes; every number up to the largest must have a text or a name."""
        if not self.labels:
            raise DataError(f"{where} must be a class for each text, got none. Add them.")
        if self.is_regression:
            raise DataError(
                f"{where} must be classes, got numbers such as {self.labels[0]}. Write "
                "classes as whole numbers or names; for regression data of a study set "
                "numbers = true."
            )
        if self.label_names is not None:
            return len(self.label_names)
        seen = {int(label) for label in self.labels}
        absent = sorted(set(range(max(seen))) - seen)
        if absent:
            raise DataError(
                f"{where} must be class numbers from 0 without gaps, got none of class "
                f"{absent[0]} and some of {', '.join(map(str, sorted(seen)[:9]))}. Number "
                "the classes from 0, or write names for them."
            )
        return max(seen) + 1

    def join_pairs(self) -> list[str]:
        """List the texts for people to read; the two of a pair one after the other."""
        pairs = self.pairs or ("",) * len(self)
        return [f"{a} · {b}" if b else a for a, b in zip(self.texts, pairs, strict=True)]

    def by_length(self) -> list[int]:
        """List the rows from short to long, so that batches need little padding."""
        pairs = self.pairs or ("",) * len(self)
        return sorted(range(len(self)), key=lambda i: len(self.texts[i]) + len(pairs[i]))

    def keys(self) -> list[tuple[Hashable, ...]]:
        """List what makes each row the same as another: its text or its pair, whatever the case."""
        return [(side,) if len(side) > 1 else side for side in self.list_sides()]

    def list_sides(self) -> list[tuple[str, ...]]:
        """List the text or the two texts of each row, without case and needless spaces."""
        columns = [self.texts] if self.pairs is None else [self.texts, self.pairs]
        return [
            tuple(" ".join(text.casefold().split()) for text in row)
            for row in zip(*columns, strict=True)
        ]


def read_text(
    path: Any,
    *,
    text: str | int | Sequence[str | int] = "text",
    text_pair: str | int | None = None,
    label: str | int | None = "label",
    label_names: Sequence[str] | None = None,
) -> TextTable:
    """Read a .tsv, .txt (tabs), .csv, .jsonl, .json or .parquet file, or a table in memory.

    Whole numbers are class numbers and stay as they are, numbers with a decimal point
    are regression targets, and anything else is the name of a class: numbered by
    `label_names`, else in sorted order.

    Args:
        path: The file; or a `datasets.Dataset` or a pandas data frame.
        text: The column of the texts, or several that are joined by " . ". Columns are
            names; for a delimited file without a header line they are numbers from 0.
        text_pair: The column of the second texts, for pairs.
        label: The column of the labels; None reads texts only.
        label_names: The names of the classes, by class number.

    Returns:
        The table, in the order of the rows.

    Raises:
        ArgumentError: If the file or a column is not there, or cannot be read.
        DataError: If a text or a label is missing, or the labels are of mixed kinds.
    """
    columns, stored_names = read_columns(
        path, {"text": text, "text_pair": text_pair, "label": label}
    )
    path = name_source(path)
    names = stored_names if label_names is None else tuple(label_names)
    if names is not None and len(set(names)) < len(names):
        raise ArgumentError(
            f"label_names must be different names, got {', '.join(names)}. Give each "
            "class its own."
        )
    labels = None
    if label is not None:
        labels, names = read_labels(columns[str(label)], names, path)
    return TextTable(
        texts=join_texts(columns, text, "text", path),
        pairs=None
        if text_pair is None
        else join_texts(columns, text_pair, "text_pair", path),
        labels=labels,
        label_names=names,
    )


def join_texts(
    columns: FileColumns,
    names: str | int | Sequence[str | int],
    argument: str,
    path: Path | str,
) -> tuple[str, ...]:
    """Take the texts of a column, or of several: joined, and without those that are empty."""
    if isinstance(names, str | int) or len(names) == 1:
        name = names if isinstance(names, str | int) else names[0]
        return _check_texts(columns[str(name)], argument, path)
    rows = zip(*(columns[str(name)] for name in names), strict=True)
    return _check_texts([join_row(row) for row in rows], argument, path)


def join_row(parts: Iterable[Any]) -> str:
    """Join the texts of a row into one, without those that are empty."""
    return _BETWEEN.join(part for part in parts if isinstance(part, str) and part.strip())


def _check_texts(values: Sequence[Any], argument: str, path: Path | str) -> tuple[str, ...]:
    texts = tuple(values)
    for row, value in enumerate(texts, 1):
        if not isinstance(value, str) or not value.strip():
            raise DataError(
                f"{argument} must be a text in every row, got {format_label(value)} in row "
                f"{row} of {path}. Fill or remove the row."
            )
    return texts
