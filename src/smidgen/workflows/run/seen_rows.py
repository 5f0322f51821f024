"""Rows to be scored that trained or chose something: scores on them flatter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from smidgen.errors import SmidgenError
from smidgen.integrations.reading.task_note import TaskNote
from smidgen.runtime.writing.claim import digest_path
from smidgen.workflows.run.dividing import TaskRows


def describe_seen_rows(
    note: TaskNote, rows: TaskRows, read: Callable[[Path], TaskRows]
) -> str | None:
    """Say how many of the rows to be scored trained the model, or chose something.

    They are compared with the files of training, as far as these are still where they were.

    Args:
        note: What training saw.
        rows: The rows to be scored.
        read: Reads a file of training as the rows were read.

    Returns:
        A sentence, or None if there are no such rows.
    """
    if note.split is None:
        return None
    used = {row for part, held in note.split.rows.items() if part != "test" for row in held}
    seen, start = set(), 0
    for file in note.files:
        path = Path(file.path)
        here = used & set(range(start, start + file.rows))
        if here and _is_unchanged(path, file.digest):
            keys = read(path).keys()
            seen.update(key for row in here for key in keys[row - start])
        start += file.rows
    count = sum(not seen.isdisjoint(keys) for keys in rows.keys())
    if not count:
        return None
    return (
        f"{count:,} of these {len(rows):,} rows trained this model or chose something for it, "
        "so scores on them flatter. Score rows that did neither."
    )


def _is_unchanged(path: Path, digest: str) -> bool:
    try:
        return digest_path(path) == digest
    except (OSError, SmidgenError):
        return False
