"""Rows to be scored that trained or chose something: scores on them flatter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from smidgen.errors import SmidgenError
from smidgen.integrations.reading.task_note import DataFile, TaskNote
from smidgen.runtime.writing.claim import digest_path
from smidgen.workflows.run.dividing import TaskRows


@dataclass(frozen=True)
class _UsedRows:
    """The rows of a file that trained or chose something, counted from 0 in the file."""

    file: DataFile
    numbers: tuple[int, ...]


def describe_seen_rows(
    note: TaskNote, rows: TaskRows, path: Path, read: Callable[[Path], TaskRows]
) -> str | None:
    """Say how many of the rows to be scored trained the model, or chose something.

    They are compared with the files of training, as far as these are still where they were
    and what they were. Only files that may share a row are read again.

    Args:
        note: What training saw.
        rows: The rows to be scored.
        path: The file or folder that they are from.
        read: Reads a file of training as the rows were read, without its labels.

    Returns:
        A sentence, or None if there are no such rows.
    """
    digest = _digest(path)
    if _was_left_out_of_training(note, digest):
        return None
    keys = rows.keys()
    unseen = {key for row in keys for key in row}
    seen = set()
    for used in _list_used_rows(note):
        if not unseen:
            break  # All of them are seen already.
        for row in _find_keys(used, rows, digest, read):
            found = unseen.intersection(row)
            seen |= found
            unseen -= found
    count = sum(not seen.isdisjoint(row) for row in keys)
    if count:
        return (
            f"{count:,} of these {len(rows):,} rows trained this model or chose something for "
            "it, so scores on them flatter. Score rows that did neither."
        )
    if any(_is_changed(used.file, path, digest) for used in _list_used_rows(note)):
        return (
            f"{path} has changed since this model was trained on it, so how many of its rows "
            "the model has seen is unknown. Score rows that it has not."
        )
    return None


def _list_used_rows(note: TaskNote) -> Iterator[_UsedRows]:
    """List the rows of each file that trained or chose something."""
    parts = {} if note.split is None else note.split.rows
    used = sorted(row for part, held in parts.items() if part != "test" for row in held)
    start = 0
    for file in note.files:
        end = start + file.rows
        numbers = tuple(row - start for row in used if start <= row < end)
        start = end
        if numbers:
            yield _UsedRows(file, numbers)


def _was_left_out_of_training(note: TaskNote, digest: str | None) -> bool:
    """Whether the rows are a file of test rows that `smidgen run` was given."""
    # It took such rows out of all other files; but not of tables of few different rows.
    if note.kind == "table" or digest not in {file.digest for file in note.files}:
        return False
    return all(used.file.digest != digest for used in _list_used_rows(note))


def _find_keys(
    used: _UsedRows, rows: TaskRows, digest: str | None, read: Callable[[Path], TaskRows]
) -> Iterator[tuple[object, ...]]:
    """Find the keys of used rows: those to be scored themselves, or in a file that is unchanged."""
    file, table = used.file, rows
    if file.digest != digest:
        path = Path(file.path)
        if _digest(path) != file.digest:
            return
        try:
            table = read(path)
        except SmidgenError:
            return  # What only says more must not end an evaluation.
    if len(table) == file.rows:
        yield from table.take(used.numbers).keys()


def _is_changed(file: DataFile, path: Path, digest: str | None) -> bool:
    """Whether the rows are from a file that trained, with another content by now."""
    with suppress(OSError):
        return file.digest != digest and Path(file.path).samefile(path)
    return False


def _digest(path: Path) -> str | None:
    try:
        return digest_path(path)
    except (OSError, SmidgenError):
        return None
