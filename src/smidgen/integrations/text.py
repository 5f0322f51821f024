"""Text tables: sentences or pairs of sentences with their labels, from common files.

Delimited files and JSON go through the standard library and only Parquet through
`datasets`. The CSV reader of `datasets` shifts every column by one when the rows are
longer than the header, fills short rows and reads the text "007" as the number 7.
"""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import datasets

from smidgen.errors import ArgumentError, DataError, reason
from smidgen.integrations.labels import Labels, format_label, read_labels

_Columns: TypeAlias = Mapping[str, Sequence[Any]]

# Quotes are text in the tab-separated files of GLUE and of most research data.
_DELIMITED: dict[str, tuple[str, Any]] = {
    ".tsv": ("\t", csv.QUOTE_NONE),
    ".txt": ("\t", csv.QUOTE_NONE),
    ".csv": (",", csv.QUOTE_MINIMAL),
}
_JSON = (".jsonl", ".json", ".ndjson")
_SUFFIXES = (*_DELIMITED, *_JSON, ".parquet")


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


def read_text(
    path: str | Path,
    *,
    text: str | int = "text",
    text_pair: str | int | None = None,
    label: str | int | None = "label",
    label_names: Sequence[str] | None = None,
) -> TextTable:
    """Read a .tsv, .txt (tabs), .csv, .jsonl, .json or .parquet file.

    Whole numbers are class numbers and stay as they are, numbers with a decimal point
    are regression targets, and anything else is the name of a class: numbered by
    `label_names`, else in sorted order.

    Args:
        path: The file.
        text: The column of the texts. Columns are names; for a delimited file without
            a header line they are numbers from 0.
        text_pair: The column of the second texts, for pairs.
        label: The column of the labels; None reads texts only.
        label_names: The names of the classes, by class number.

    Returns:
        The table, in the order of the file.

    Raises:
        ArgumentError: If the file or a column is not there, or cannot be read.
        DataError: If a text or a label is missing, or the labels are of mixed kinds.
    """
    path = Path(path)
    columns, stored_names = read_columns(
        path, {"text": text, "text_pair": text_pair, "label": label}
    )
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
        texts=_check_texts(columns[str(text)], "text", path),
        pairs=None
        if text_pair is None
        else _check_texts(columns[str(text_pair)], "text_pair", path),
        labels=labels,
        label_names=names,
    )


def read_columns(
    path: Path, chosen: Mapping[str, str | int | None]
) -> tuple[_Columns, tuple[str, ...] | None]:
    """Read a file's columns, and the names of its classes if it stores them."""
    # chosen: the columns that must be there, by what asks for each.
    if not path.is_file():
        raise ArgumentError(
            f"path must be a file that exists, got {str(path)!r}. Check the spelling."
        )
    columns, stored_names = _read(path, chosen)
    if not columns or not len(next(iter(columns.values()))):
        raise DataError(f"{path} must hold at least one row, got none. Fill the file.")
    _check_columns(columns, chosen, path)
    return columns, stored_names


def _read(
    path: Path, chosen: Mapping[str, str | int | None]
) -> tuple[_Columns, tuple[str, ...] | None]:
    """Read the columns, and the names of the classes if the file stores them."""
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise ArgumentError(
            f"path must end in one of {', '.join(_SUFFIXES)}, got {path.name!r}. "
            "Rename or convert the file."
        )
    columns = [column for column in chosen.values() if column is not None]
    numbered = [isinstance(column, int) for column in columns]
    if any(numbered) and not (all(numbered) and suffix in _DELIMITED):
        raise ArgumentError(
            "text, text_pair and label must be all column names, or all column numbers "
            f"of a .tsv, .txt or .csv without a header line, got {columns} for "
            f"{path.name}. Give names."
        )
    try:
        if suffix in _DELIMITED:
            return _read_delimited(
                path, *_DELIMITED[suffix], header=not any(numbered)
            ), None
        if suffix in _JSON:
            return _read_json(path), None
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} must be UTF-8 text, got byte 0x{error.object[error.start]:02x} at "
            f"{error.start}. Save it as UTF-8."
        ) from error
    return _read_parquet(path, chosen["label"])


def _read_delimited(path: Path, delimiter: str, quoting: Any, *, header: bool) -> _Columns:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, quoting=quoting, strict=True)
        rows: list[list[str]] = []
        try:
            for row in reader:
                if row and rows and len(row) != len(rows[0]):
                    raise DataError(
                        f"line {reader.line_num} of {path} must have {len(rows[0])} "
                        f"fields like the first, got {len(row)}. Fix the line."
                    )
                if row:
                    rows.append(row)
        except csv.Error as error:
            raise DataError(
                f"line {reader.line_num} of {path} must be delimited text, got one "
                f"that cannot be read ({error}). Fix the line."
            ) from error
    if not rows:
        return {}
    names = rows.pop(0) if header else [str(index) for index in range(len(rows[0]))]
    if len(set(names)) < len(names):
        raise DataError(
            f"the columns of {path} must have different names, got {', '.join(names)}. "
            "Rename them."
        )
    return {name: [row[index] for row in rows] for index, name in enumerate(names)}


def _read_json(path: Path) -> _Columns:
    content = path.read_text(encoding="utf-8-sig")
    if content.lstrip().startswith("["):
        rows = _decode(content, 1, path)
    else:
        lines = enumerate(content.split("\n"), 1)
        rows = [_decode(row, line, path) for line, row in lines if row.strip()]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise DataError(
                f"row {number} of {path} must be a JSON object, got {format_label(row)}. "
                "Write it with the names of the columns."
            )
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _decode(content: str, line: int, path: Path) -> Any:
    try:
        return json.loads(content)
    except (RecursionError, ValueError) as error:
        line += getattr(error, "lineno", 1) - 1
        raise DataError(
            f"{path} must hold one JSON object a line, or one array of objects, got "
            f"something else in line {line} ({getattr(error, 'msg', reason(error))}). Fix it."
        ) from error


def _read_parquet(
    path: Path, label: str | int | None
) -> tuple[_Columns, tuple[str, ...] | None]:
    with tempfile.TemporaryDirectory() as folder, _silence():
        # A copy, because datasets takes brackets and "::" in a path for a pattern.
        plain = shutil.copyfile(path, Path(folder) / "data.parquet")
        try:
            data = datasets.Dataset.from_parquet(
                str(plain), cache_dir=folder, keep_in_memory=True
            )
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            raise DataError(
                f"{path} must be a Parquet file with rows, got one that cannot be read "
                f"({format_label(error)}). Write it again."
            ) from error
    names = getattr(data.features.get(label), "names", None)
    return {name: data[name] for name in data.column_names}, names and tuple(names)


@contextmanager
def _silence() -> Iterator[None]:
    """Silence the bars and the log of datasets, and restore them."""
    level = datasets.logging.get_verbosity()
    bars = not datasets.are_progress_bars_disabled()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if bars:
            datasets.disable_progress_bars()
        try:
            yield
        finally:
            datasets.logging.set_verbosity(level)
            if bars:
                datasets.enable_progress_bars()


def _check_columns(
    columns: _Columns, chosen: Mapping[str, str | int | None], path: Path
) -> None:
    for argument, column in chosen.items():
        if column is None or str(column) in columns:
            continue
        hint = ", or None to read texts only" if argument == "label" else ""
        if path.suffix.lower() in _DELIMITED:
            hint += ", or give column numbers from 0 if there is no header line"
        raise ArgumentError(
            f"{argument} must be one of the columns of {path.name} "
            f"({', '.join(columns)}), got {column!r}. Name one{hint}."
        )


def _check_texts(values: Sequence[Any], argument: str, path: Path) -> tuple[str, ...]:
    texts = tuple(values)
    for row, value in enumerate(texts, 1):
        if not isinstance(value, str) or not value.strip():
            raise DataError(
                f"{argument} must be a text in every row, got {format_label(value)} in row "
                f"{row} of {path}. Fill or remove the row."
            )
    return texts
