"""Which rows of a run train, choose, decide and report; what stands on two sides is said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from textwrap import shorten
from typing import Any, TypeAlias

from smidgen.errors import DataError
from smidgen.integrations.reading.images import ImageSet
from smidgen.integrations.reading.splitting import (
    HELD_OUT,
    PARTS,
    choose_shares,
    deal_rows,
    find_overlap,
    group_pairs,
    group_rows,
    name_part,
)
from smidgen.integrations.reading.tables import FeatureTable
from smidgen.integrations.reading.task_note import SplitNote, TaskNote
from smidgen.integrations.text import TextTable
from smidgen.workflows.bayesify.settings import LEAST_ROWS
from smidgen.workflows.run.settings import RunSource

TaskRows: TypeAlias = TextTable | FeatureTable | ImageSet
"""Rows of any kind: texts, cells or images, with their labels."""
_LEAST_GROUPS = 50
_LEAST_CALIBRATION = 2 * LEAST_ROWS
_Pools: TypeAlias = dict[tuple[str, ...], list[int]]


@dataclass(frozen=True, eq=False)
class ReadRows:
    """Labelled rows of all files, one after another, before they are divided.

    `keys` say which rows are the same; `split` is the column that says what the rows of the
    first file are for.
    """

    rows: TaskRows
    note: TaskNote
    keys: Sequence[tuple[Hashable, ...]]
    split: Sequence[Any] | None = None


def divide_rows(
    source: RunSource, read: ReadRows, seed: int, said: list[str]
) -> tuple[SplitNote, tuple[int, ...]]:
    """Divide rows by what was given, and the rest by a seed.

    Args:
        source: What was typed.
        read: The rows.
        seed: Fixes which row goes where.
        said: Takes a sentence for each thing worth saying.

    Returns:
        The rows of each part, and the number of each row's group, which stayed together.

    Raises:
        DataError: If there are too few rows, or the same on all sides.
    """  # noqa: DOC502
    rows, classes = read.rows, None
    pools = _make_pools(source, [file.rows for file in read.note.files], read.split, seed)
    count = read.note.files[0].rows
    if source.limit is not None and source.limit < count:
        said.append(
            f"{source.limit:,} of the {count:,} rows of {source.data} are used, drawn by seed "
            f"{seed}"
        )
    groups = same = group_rows(read.keys)
    few = len(set(groups)) < min(_LEAST_GROUPS, len(rows))
    if few and isinstance(rows, FeatureTable) and source.group is None:
        said.append(
            f"only {len(set(groups))} different rows, so the same row may be on both sides"
        )
        groups = same = list(range(len(rows)))
    if isinstance(rows, TextTable) and rows.pairs is not None and source.group is None:
        groups = _group_by_texts(rows, said)
    pools = _leave_out_overlaps(pools, same, read, said)
    if read.note.classes is not None:
        classes = [int(label) for label in rows.labels or ()]
    shares = choose_shares(sum(map(len, pools.values())))
    taken: dict[str, tuple[int, ...]] = {}
    for parts, pool in pools.items():
        own = {part: shares[part] for part in parts}
        taken |= deal_rows(pool, groups, own, classes=classes, seed=seed)
    ordered = {part: taken[part] for part in PARTS}
    _require_enough(ordered)
    if classes is not None:
        _require_classes(read.note.classes or (), classes, ordered, said)
    sizes = ", ".join(f"{len(part):,} {name}" for name, part in ordered.items())
    said.append(f"rows divided by seed {seed}: {sizes}")
    return SplitNote(seed, shares, ordered), tuple(groups)


def _group_by_texts(rows: TextTable, said: list[str]) -> list[int]:
    """Group pairs that share a text, and say so where one stands in too many of them."""
    groups, sides = group_pairs(rows.list_sides())
    if len(sides) < 2:
        columns = {"first": rows.texts, "second": rows.pairs or ()}
        repeated = [name for side, name in enumerate(columns) if side not in sides]
        text, count = Counter(columns[repeated[-1]]).most_common(1)[0]
        rule = "are together"
        if sides:
            rule = f"or the same {list(columns)[sides[0]]} text are together"
        said.append(
            f"the {' and '.join(repeated)} texts repeat ({_shorten(text)} stands in {count:,} "
            f"rows), so only rows of the same pair {rule}; pass --group COLUMN for others"
        )
    return groups


def _require_enough(parts: Mapping[str, Sequence[int]]) -> None:
    """Refuse, before any work, rows that are too few to choose and calibrate with."""
    count = len(parts["calibration"])
    if count < _LEAST_CALIBRATION:
        total = sum(map(len, parts.values()))
        raise DataError(
            f"{_LEAST_CALIBRATION} rows or more must be left to calibrate with, got {count} of "
            f"{total}. Give {-(-total * _LEAST_CALIBRATION // max(count, 1))} rows or more in "
            "all, or a larger --val."
        )


def _require_classes(
    names: Sequence[str],
    classes: Sequence[int],
    parts: Mapping[str, Sequence[int]],
    said: list[str],
) -> None:
    """Refuse a class that nothing teaches; say which others no rule will have seen."""
    for part in ("train", "calibration", "decision"):
        seen = {classes[row] for row in parts[part]}
        absent = [repr(name) for number, name in enumerate(names) if number not in seen]
        if not absent:
            continue
        shown = ", ".join(absent[:6]) + (", …" if len(absent) > 6 else "")
        if part == "train":
            raise DataError(
                f"the training rows must have every class, got none of {shown}. Add such rows "
                "to them, or remove the class from the other rows."
            )
        said.append(f"warning: none of the {part} rows is of class {shown}")


def _make_pools(
    source: RunSource, counts: Sequence[int], split: Sequence[Any] | None, seed: int
) -> _Pools:
    """List the rows that are dealt out together, by the parts they may go to."""
    data = list(range(counts[0]))
    if source.limit is not None and source.limit < len(data):
        data = sorted(Random(seed).sample(data, source.limit))
    named: dict[str, list[int]] = {"train": data, "validation": [], "test": []}
    if split is not None:
        named = _read_split(source, split, data)
    start = counts[0]
    for name, path, count in zip(
        ("validation", "test"),
        (source.validation, source.test),
        _spread_counts(source, counts),
        strict=True,
    ):
        if path is not None:
            named[name] = list(range(start, start + count))
            start += count
    given = {
        **(dict.fromkeys(HELD_OUT, "validation") if named["validation"] else {}),
        **({"test": "test"} if named["test"] else {}),
    }
    pools: _Pools = {}
    for name, rows in named.items():
        parts = tuple(part for part in PARTS if given.get(part, "train") == name)
        if rows:
            pools[parts] = rows
    return pools


def _spread_counts(source: RunSource, counts: Sequence[int]) -> tuple[int, int]:
    """Tell how many rows the files of validation and test rows have."""
    left = list(counts[1:])
    validation = left.pop(0) if source.validation is not None else 0
    return validation, left.pop(0) if source.test is not None else 0


def _read_split(
    source: RunSource, split: Sequence[Any], data: Sequence[int]
) -> dict[str, list[int]]:
    named: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    for row in data:
        part = name_part(split[row])
        if part is None:
            raise DataError(
                f"--split {source.split} must say train, validation or test, got "
                f"{split[row]!r} in row {row + 1} of {source.data}. Fix the row."
            )
        named[part].append(row)
    if not named["train"]:
        raise DataError(
            f"--split {source.split} must have rows for train, got none in {source.data}. "
            "Leave --split out to have rows divided."
        )
    return named


def _leave_out_overlaps(
    pools: _Pools, groups: Sequence[int], read: ReadRows, said: list[str]
) -> _Pools:
    """Take rows out of training that stand in given validation or test rows, and say so."""
    order = sorted(pools, key=lambda parts: PARTS.index(parts[-1]), reverse=True)
    kept: dict[int, str] = {}
    cleaned: _Pools = {}
    for parts in order:
        overlap = find_overlap(groups, kept, pools[parts])
        if overlap:
            row, other = next(iter(overlap.items()))
            held = dict.fromkeys(kept[twin] for twin in overlap.values())
            said.append(
                f"{len(overlap):,} {parts[0]} rows are the same as, or belong to, rows held "
                f"out for {' and '.join(held)} and are left out, such as "
                f"{_name_row(read.note, row)} ({_show(read.rows, row)}), which is like "
                f"{_name_row(read.note, other)}"
            )
        cleaned[parts] = [row for row in pools[parts] if row not in overlap]
        if not cleaned[parts]:
            raise DataError(
                f"the {parts[0]} rows must be others than those held out, got the same "
                "everywhere. Give other files."
            )
        kept |= dict.fromkeys(cleaned[parts], parts[0])
    return {parts: cleaned[parts] for parts in pools}


def _name_row(note: TaskNote, row: int) -> str:
    """Name a row as people find it: counted from 1 in its own file."""
    for file in note.files:
        if row < file.rows:
            return f"row {row + 1} of {Path(file.path).name}"
        row -= file.rows
    raise AssertionError(row)


def _show(rows: TaskRows, row: int) -> str:
    """Show a row, in a few words."""
    if isinstance(rows, TextTable):
        return _shorten(rows.texts[row])
    if isinstance(rows, FeatureTable):
        cells: Mapping[str, Any] = rows.cells
        shown = ", ".join(f"{name}={column[row]}" for name, column in cells.items())
        return shorten(shown, 40, placeholder="…")
    return "an image" if rows.files is None else rows.files[row]


def _shorten(text: str) -> str:
    return repr(shorten(text, 40, placeholder="…"))
