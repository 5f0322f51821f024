"""A file of answers: the columns that were read, and beside them what was predicted."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from smidgen.errors import ArgumentError
from smidgen.runtime.files import write_text

_SUFFIXES = (".csv", ".tsv", ".jsonl")


def check_answers_file(path: Path, option: str) -> None:
    """Refuse a name that does not tell the format."""
    if path.suffix.lower() not in _SUFFIXES:
        raise ArgumentError(
            f"{option} must end in {', '.join(_SUFFIXES)}, got {path.name!r}. Rename it."
        )


def write_answers(path: Path, columns: Mapping[str, Sequence[Any]]) -> Path:
    """Write columns of one length as CSV, TSV or JSON lines, whole or not at all.

    Args:
        path: The file, whose suffix tells the format.
        columns: The values of each column.

    Returns:
        The path.
    """
    check_answers_file(path, "path")
    rows = list(zip(*columns.values(), strict=True))
    if path.suffix.lower() == ".jsonl":
        # Parquet also holds times and other values that JSON lacks.
        lines = [
            json.dumps(dict(zip(columns, row, strict=True)), default=str) for row in rows
        ]
        return write_text(path, "\n".join(lines) + "\n")
    if path.suffix.lower() == ".tsv":
        # Quotes are text there, so that no cell can hold a tab or a new line.
        table = [list(columns), *rows]
        lines = ["\t".join(" ".join(_plain(cell).split()) for cell in row) for row in table]
        return write_text(path, "\n".join(lines) + "\n")
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_plain(cell) for cell in row] for row in rows)
    return write_text(path, written.getvalue())


def add_columns(
    columns: Mapping[str, Sequence[Any]], added: Mapping[str, Sequence[Any]]
) -> dict[str, Sequence[Any]]:
    """Put columns after others; a name that is taken gets an underscore."""
    joined = dict(columns)
    for name, values in added.items():
        while name in joined:
            name += "_"
        joined[name] = values
    return joined


def _plain(cell: Any) -> str:
    if cell is None:
        return ""
    return (
        json.dumps(cell, default=str) if isinstance(cell, bool | list | dict) else str(cell)
    )
