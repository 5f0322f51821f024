"""Columns of common files: delimited text, JSON and Parquet.

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
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from smidgen.errors import ArgumentError, DataError, did_you_mean, how_to_install, reason
from smidgen.integrations.labels import format_label
from smidgen.runtime.importing.foreign_tables import (
    name_table,
    read_foreign_columns,
    refuse_other_tables,
)

FileColumns: TypeAlias = Mapping[str, Sequence[Any]]
"""The values of each column, by its name."""
Chosen: TypeAlias = Mapping[str, str | int | Sequence[str | int] | None]
"""The columns that must be there, by the argument that asks for them."""

# Quotes are text in the tab-separated files of GLUE and of most research data.
_DELIMITED: dict[str, tuple[str, Any]] = {
    ".tsv": ("\t", csv.QUOTE_NONE),
    ".txt": ("\t", csv.QUOTE_NONE),
    ".csv": (",", csv.QUOTE_MINIMAL),
}
_JSON = (".jsonl", ".json", ".ndjson")
_SUFFIXES = (*_DELIMITED, *_JSON, ".parquet")


def name_source(source: Any) -> Path:
    """Name where rows come from, for errors: a file's path, or what kind of table it is."""
    table = name_table(source)
    return Path(source) if table is None else Path(f"the {table}")


def read_columns(source: Any, chosen: Chosen) -> tuple[FileColumns, tuple[str, ...] | None]:
    """Read the columns of a file, and the names of its classes if it stores them.

    Args:
        source: The path of a file; or a `datasets.Dataset`, or a pandas data frame.
        chosen: The columns that must be there, by what asks for each.

    Returns:
        The columns, and the names of the classes.

    Raises:
        ArgumentError: If the file or a column is not there.
        DataError: If there is no row.
    """
    refuse_other_tables("path", source)
    path = name_source(source)
    if name_table(source) is not None:
        columns, stored_names = _read_table(source, chosen)
        return _check_rows(columns, chosen, path), stored_names
    if not path.is_file():
        raise ArgumentError(
            f"path must be a file that exists, got {str(path)!r}. Check the spelling."
        )
    columns, stored_names = _read(path, chosen)
    return _check_rows(columns, chosen, path), stored_names


def _read_table(source: Any, chosen: Chosen) -> tuple[FileColumns, tuple[str, ...] | None]:
    """Read the columns of a table in memory."""
    columns, features = read_foreign_columns(source)
    label = dict(list_chosen(chosen)).get("label")
    names = getattr(features.get(label), "names", None)
    return columns, names and tuple(names)


def _check_rows(columns: FileColumns, chosen: Chosen, path: Path) -> FileColumns:
    """Refuse a source without rows, or without a column that must be there."""
    if not columns or not len(next(iter(columns.values()))):
        raise DataError(f"{path} must hold at least one row, got none. Fill it.")
    _check_columns(columns, chosen, path)
    return columns


def list_chosen(chosen: Chosen) -> list[tuple[str, str | int]]:
    """List each column with what asks for it."""
    pairs: list[tuple[str, str | int]] = []
    for argument, column in chosen.items():
        several = [column] if isinstance(column, str | int) else column or ()
        pairs += [(argument, each) for each in several]
    return pairs


def _read(path: Path, chosen: Chosen) -> tuple[FileColumns, tuple[str, ...] | None]:
    """Read the columns, and the names of the classes if the file stores them."""
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise ArgumentError(
            f"path must end in one of {', '.join(_SUFFIXES)}, got {path.name!r}. "
            "Rename or convert the file."
        )
    columns = [column for _, column in list_chosen(chosen)]
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
    return _read_parquet(path, dict(list_chosen(chosen)).get("label"))


def _read_delimited(
    path: Path, delimiter: str, quoting: Any, *, header: bool
) -> FileColumns:
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


def _read_json(path: Path) -> FileColumns:
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
) -> tuple[FileColumns, tuple[str, ...] | None]:
    if find_spec("datasets") is None:
        raise DataError(
            f"{path} is a Parquet file, which needs the package 'datasets', and it is not "
            f"installed. Convert the file to CSV, or {how_to_install('hf')}."
        )
    # Imported here: it takes long, and other files do not need it.
    datasets = import_module("datasets")
    with tempfile.TemporaryDirectory() as folder, _silence(datasets):
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
def _silence(datasets: Any) -> Iterator[None]:
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


def _check_columns(columns: FileColumns, chosen: Chosen, path: Path) -> None:
    for argument, column in list_chosen(chosen):
        if str(column) in columns:
            continue
        advice = did_you_mean(str(column), columns)
        if not advice:
            is_delimited = path.suffix.lower() in _DELIMITED
            numbers = ", or give column numbers from 0 if there is no header line"
            advice = f" Name one{numbers if is_delimited else ''}."
        raise ArgumentError(
            f"{argument} must be one of the columns of {path.name} "
            f"({', '.join(columns)}), got {column!r}.{advice}"
        )
