"""Reading the rows of a run: what each is, what is to be predicted, and which goes where."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from smidgen.errors import ArgumentError, DataError
from smidgen.integrations.labels import Labels
from smidgen.integrations.reading.columns import FileColumns
from smidgen.integrations.reading.images import (
    ImageSet,
    find_span,
    join_images,
    read_image_set,
    refuse_other_scale,
)
from smidgen.integrations.reading.tables import (
    NPZ_LABEL,
    FeatureTable,
    find_identifiers,
    find_row_numbers,
    make_feature_table,
    read_table_columns,
    refuse_stray_texts,
)
from smidgen.integrations.reading.target import Target, TargetKind, read_target
from smidgen.integrations.reading.task_note import DataFile, TaskKind, TaskNote
from smidgen.integrations.text import TextTable, join_texts
from smidgen.runtime.writing.claim import digest_path
from smidgen.workflows.run.dividing import ReadRows, TaskRows, divide_rows
from smidgen.workflows.run.settings import RunSource

_IMAGES = (".bin", "-ubyte", "-ubyte.gz")
_TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt")
# What the numbers of images are called, which have no columns.
_IMAGE_LABEL = "label"
_WORDS = 4
"""A column of texts with more words than this, on average, is a text and not a category."""


@dataclass(frozen=True, eq=False)
class RunRows:
    """All rows of a run, what is known of them, and a sentence for each thing assumed.

    `groups` number the rows that stayed together when they were divided.
    """

    rows: TaskRows
    note: TaskNote
    said: tuple[str, ...]
    groups: tuple[int, ...]

    def part(self, name: str) -> TaskRows:
        """Take the rows of a part; texts from short to long, so that batches need no padding."""
        assert self.note.split is not None
        return self._take(self.note.split.rows[name])

    def groups_of(self, name: str) -> list[int]:
        """List the group of each row of a part, in the part's order."""
        assert self.note.split is not None
        return [self.groups[row] for row in self._order(self.note.split.rows[name])]

    def draw_from_groups(self, name: str, seed: int) -> TaskRows:
        """Take one row of each group of a part, drawn by a seed."""
        # A promise that counts rows holds where they are drawn one by one; those of a group
        # came together, and say the same thing several times.
        assert self.note.split is not None
        members: dict[int, list[int]] = {}
        for row in self.note.split.rows[name]:
            members.setdefault(self.groups[row], []).append(row)
        draw = Random(seed)
        return self._take(sorted(draw.choice(rows) for rows in members.values()))

    def number_rows(self, name: str) -> list[int]:
        """List which row of its own file each row of a part is, from 0, in the part's order."""
        assert self.note.split is not None
        starts = [0, *accumulate(file.rows for file in self.note.files)]
        numbers = self._order(self.note.split.rows[name])
        return [row - starts[bisect_right(starts, row) - 1] for row in numbers]

    def order_classes(self, names: tuple[str, ...]) -> RunRows:
        """Number the same classes in another order."""
        numbers = [names.index(name) for name in self.note.classes or ()]
        labels = tuple(numbers[int(label)] for label in self.rows.labels or ())
        return replace(
            self,
            rows=replace(self.rows, labels=labels, label_names=names),
            note=replace(self.note, classes=names),
        )

    def _take(self, numbers: Sequence[int]) -> TaskRows:
        return self.rows.take(self._order(numbers))

    def _order(self, numbers: Sequence[int]) -> Sequence[int]:
        if not isinstance(self.rows, TextTable):
            return numbers
        return [numbers[row] for row in self.rows.take(numbers).by_length()]


def read_run_rows(source: RunSource, seed: int) -> RunRows:
    """Read all files of a run and divide their rows.

    Args:
        source: What to read.
        seed: Fixes which row goes where.

    Returns:
        The rows. The note lacks what only training knows.

    Raises:
        DataError: If rows cannot be used as they are.
    """  # noqa: DOC502
    said: list[str] = []
    kind = source.kind or _guess_kind(source.data)
    read = (
        _read_images(source, said)
        if kind == "images"
        else _read_columns(source, kind, said)
    )
    split, groups = divide_rows(source, read, seed, said)
    return RunRows(read.rows, replace(read.note, split=split), tuple(said), groups)


def read_noted_rows(
    note: TaskNote, path: Path, *, labelled: bool
) -> tuple[TaskRows, FileColumns]:
    """Read new rows as training read its own.

    Args:
        note: What training saw.
        path: The file, or folder of images.
        labelled: Whether labels are needed.

    Returns:
        The rows, and the file's columns, all of them, as they were read.

    Raises:
        DataError: If a column that training saw is missing, or a label is needed and lacks.
    """
    if note.kind == "images":
        images, listed = read_image_set(path, shape=note.shape)
        if note.span is not None:
            refuse_other_scale(images, note.span, path)
        if labelled and not listed:
            raise DataError(
                f"{path} must hold labels to be scored, got none. Add them, or use 'smidgen "
                "predict'."
            )
        names = images.files or tuple(map(str, range(len(images))))
        if not labelled:
            return images, {"image": names}
        wanted: TargetKind | None = "regression" if note.classes is None else None
        target = read_target(listed, path, kind=wanted, names=note.classes)
        return replace(images, labels=target.labels, label_names=target.names), {
            "image": names
        }
    chosen: dict[str, Any] = {"label": note.label if labelled else None}
    if note.kind == "text":
        chosen |= {"text": note.columns, "text_pair": note.text_pair}
    columns = read_table_columns(path, chosen)
    labels = None
    if labelled:
        assert note.label is not None
        kind: TargetKind | None = "regression" if note.classes is None else None
        values = columns[note.label]
        labels = read_target(values, path, kind=kind, names=note.classes).labels
    return make_rows(note, columns, path, labels), columns


def _guess_kind(path: Path) -> TaskKind | None:
    """Tell images by their files; a table and texts look alike from outside."""
    return "images" if path.is_dir() or path.name.endswith(_IMAGES) else None


def make_rows(
    note: TaskNote, columns: FileColumns, where: Path | str, labels: Labels | None
) -> TextTable | FeatureTable:
    """Make rows of the columns that training saw.

    Args:
        note: What training saw.
        columns: All columns.
        where: What they were read from, for errors.
        labels: The labels of the rows, where they are known.

    Returns:
        The texts, or the cells of a table.
    """
    if note.kind == "table":
        return make_feature_table(
            columns, note.columns, where, labels=labels, label_names=note.classes
        )
    pair = note.text_pair
    return TextTable(
        join_texts(columns, note.columns, "text", where),
        None if pair is None else join_texts(columns, pair, "text_pair", where),
        labels,
        note.classes,
    )


def _read_images(source: RunSource, said: list[str]) -> ReadRows:
    if source.data.suffix.lower() in _TABLES:
        raise ArgumentError(
            f"--images reads an IDX file, an .npz or a folder of pictures, got {source.data}. "
            "Write the images and their labels into an .npz (images, labels), or pass --table."
        )
    kind = source.target
    sets: list[ImageSet] = []
    labels: list[float] = []
    target: Target | None = None
    for path in source.files:
        images, listed = read_image_set(path, shape=sets[0].shape if sets else None)
        if sets:
            refuse_other_scale(images, find_span(sets[0]), path)
        if not listed:
            raise DataError(
                f"{path} must hold a label for each image, got none. Put images into a folder "
                "for each class, or write labels into the file."
            )
        names = None if target is None else target.names
        target = read_target(listed, path, kind=kind or _guess_target(listed), names=names)
        kind = "classes" if target.names else "regression"
        sets.append(images)
        labels += list(target.labels)
    assert target is not None
    joined = join_images(sets)
    given = labels if target.names is None else map(int, labels)
    rows = replace(joined, labels=tuple(given), label_names=target.names)
    files = [
        _describe_file(path, len(s)) for path, s in zip(source.files, sets, strict=True)
    ]
    note = TaskNote(
        "images",
        label=_IMAGE_LABEL if target.names is None else None,
        classes=target.names,
        shape=rows.shape,
        span=find_span(sets[0]),
        files=tuple(files),
    )
    what = "to predict a number"
    if target.names is not None:
        what = f"in {len(target.names)} classes"
    shape = " × ".join(map(str, rows.shape))
    said.append(f"{len(rows):,} images of shape {shape} {what}")
    return ReadRows(rows, note, rows.keys())


def _guess_target(values: Sequence[Any]) -> TargetKind:
    """Take decimal labels of images for numbers, and all others for classes."""
    decimal = (isinstance(v, float) and not v.is_integer() for v in values)
    return "regression" if any(decimal) else "classes"


def _read_columns(source: RunSource, kind: TaskKind | None, said: list[str]) -> ReadRows:
    """Read texts or a table."""
    label = source.label
    if label is None and source.data.suffix.lower() == ".npz":
        label = NPZ_LABEL
    if label is None:
        raise ArgumentError(
            "--label must name the column to predict, got none. Add --label COLUMN."
        )
    chosen: dict[str, Any] = {
        "label": label,
        "text": source.text,
        "text_pair": source.text_pair,
        "leave_out": source.leave_out,
        "group": source.group,
    }
    files = [
        read_table_columns(
            path, {**chosen, "split": source.split if path == source.data else None}
        )
        for path in source.files
    ]
    note = _choose_columns(source, kind, label, files[0], said)
    targets = _read_targets(source, label, files, said)
    note = replace(note, classes=targets[0].names)
    parts = [
        make_rows(note, columns, path, target.labels)
        for columns, path, target in zip(files, source.files, targets, strict=True)
    ]
    rows = _join(parts)
    if isinstance(rows, FeatureTable):
        refuse_stray_texts(rows, source.data)
        rows = _leave_out_columns(rows, parts[0], said)
        note = replace(note, columns=tuple(rows.cells))
    listed = [
        _describe_file(path, len(part))
        for path, part in zip(source.files, parts, strict=True)
    ]
    keys = rows.keys()
    if source.group is not None:
        values = [value for columns in files for value in columns[source.group]]
        keys = [(*key, ("group", str(v))) for key, v in zip(keys, values, strict=True)]
    split = None if source.split is None else list(files[0][source.split])
    said.append(_describe_task(rows, note))
    return ReadRows(rows, replace(note, files=tuple(listed)), keys, split)


def _leave_out_columns(
    rows: FeatureTable, first: TextTable | FeatureTable, said: list[str]
) -> FeatureTable:
    """Leave out columns that tell rows apart and nothing else, and say so."""
    assert isinstance(first, FeatureTable)
    named = dict.fromkeys(find_identifiers(rows), "differs in almost every row")
    # A file of test rows may count its own from the start again.
    counting = dict.fromkeys(find_row_numbers(first), "only counts the rows")
    if len(named | counting) < len(rows.cells):
        named |= counting
    for name, reason in sorted(named.items()):
        said.append(f"{name!r} {reason} and is left out")
    return replace(rows, cells={n: c for n, c in rows.cells.items() if n not in named})


def _choose_columns(
    source: RunSource,
    kind: TaskKind | None,
    label: str,
    columns: FileColumns,
    said: list[str],
) -> TaskNote:
    """Choose the columns to predict from, and say so where they were not named."""
    apart = {label, source.group, source.split, source.text_pair, *source.leave_out}
    names = [name for name in columns if name not in apart]
    if kind is None and not source.text:
        found = [name for name in names if _is_text(columns[name])]
        kind = "text" if found else "table"
        said.append(
            f"read as texts in {', '.join(found)}; pass --table for a table"
            if found
            else "read as a table; pass --text COLUMN for texts"
        )
        names = found or names
    if kind == "table":
        return TaskNote("table", tuple(names), label=label)
    return TaskNote(
        "text", source.text or tuple(names), text_pair=source.text_pair, label=label
    )


def _is_text(values: Sequence[Any]) -> bool:
    words = [len(value.split()) for value in values if isinstance(value, str)]
    return bool(words) and fmean(words) > _WORDS


def _read_targets(
    source: RunSource, label: str, files: Sequence[FileColumns], said: list[str]
) -> list[Target]:
    first = read_target(files[0][label], source.data, kind=source.target)
    if first.assumed is not None:
        said.append(first.assumed)
    kind: TargetKind | None = "regression" if first.names is None else None
    others = [
        read_target(columns[label], path, kind=kind, names=first.names)
        for columns, path in zip(files[1:], source.files[1:], strict=True)
    ]
    return [first, *others]


def _join(parts: Sequence[TextTable | FeatureTable]) -> TextTable | FeatureTable:
    """Put the rows of several files one after another."""
    first = parts[0]
    labels: Any = tuple(label for part in parts for label in part.labels or ())
    if isinstance(first, FeatureTable):
        tables = [part for part in parts if isinstance(part, FeatureTable)]
        cells = {
            name: tuple(cell for table in tables for cell in table.cells[name])
            for name in first.cells
        }
        return FeatureTable(cells, labels, first.label_names)
    texts = [part for part in parts if isinstance(part, TextTable)]
    pairs = None
    if first.pairs is not None:
        pairs = tuple(text for table in texts for text in table.pairs or ())
    joined = tuple(text for table in texts for text in table.texts)
    return TextTable(joined, pairs, labels, first.label_names)


def _describe_file(path: Path, rows: int) -> DataFile:
    return DataFile(str(path), rows, digest_path(path))


def _describe_task(rows: TaskRows, note: TaskNote) -> str:
    what = "texts" if note.kind == "text" else f"rows of {len(note.columns)} columns"
    if note.classes is None:
        return f"{len(rows):,} {what}, to predict the number {note.label!r}"
    shown = ", ".join(note.classes[:6]) + (", …" if len(note.classes) > 6 else "")
    return f"{len(rows):,} {what} in {len(note.classes)} classes ({shown})"
