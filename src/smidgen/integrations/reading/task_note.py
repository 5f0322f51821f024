"""`TaskNote`: what training saw, stored as `task.json` beside the model it made.

Columns, class names, lengths, scaling and which rows went where: later commands use it, and
refuse or say what differs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from smidgen.errors import ArgumentError, StoreError
from smidgen.integrations.reading.scaling import Scaling
from smidgen.runtime.artifact import (
    read_sealed_json,
    reading,
    require_schema,
    write_sealed_json,
)
from smidgen.runtime.reading import convert_json

TASK_NOTE = "task.json"
"""The file of the note, in a model's folder or in one that `smidgen run` made."""
TaskKind = Literal["text", "table", "images"]
_SCHEMA = 1
_MOST_ROWS = 10_000_000
"""Rows that a note may speak of: they are listed in memory when it is read."""
_ADVICE = "Make the folder again with 'smidgen run' or 'smidgen finetune'."


@dataclass(frozen=True)
class DataFile:
    """A file or folder that rows came from: its name, how many, and a digest of its content."""

    path: str
    rows: int
    digest: str


@dataclass(frozen=True)
class SplitNote:
    """Which rows went where, counted from 0 through all files.

    `shares` are those that rows were dealt by; empty where every part was given.
    """

    seed: int
    shares: Mapping[str, float]
    rows: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class TaskNote:
    """What training saw.

    Args:
        kind: What a row is.
        columns: The columns of the text, or of a table's features; none for images.
        text_pair: The column of the second text.
        label: The column of the label.
        classes: The names of the classes; None for a regression.
        max_length: Longer texts are cut to this many tokens.
        base: The model that was fine-tuned.
        scaling: How a table's columns become numbers.
        target: Of a regression, the number a label is reduced by and the unit it is then
            counted in, which make the target of the model.
        shape: The shape of an image.
        span: The smallest and the largest value of images.
        files: Where the rows came from.
        split: Which rows went where.
    """

    kind: TaskKind
    columns: tuple[str, ...] = ()
    text_pair: str | None = None
    label: str | None = None
    classes: tuple[str, ...] | None = None
    max_length: int | None = None
    base: str | None = None
    scaling: Scaling | None = None
    target: tuple[float, float] | None = None
    shape: tuple[int, ...] | None = None
    span: tuple[float, float] | None = None
    files: tuple[DataFile, ...] = ()
    split: SplitNote | None = None

    @property
    def unit(self) -> str | None:
        """Say what the model's numbers are of, where that is not the label itself."""
        if self.target in (None, (0.0, 1.0)):
            return None
        assert self.target is not None
        offset, unit = self.target
        return f"({self.label} - {offset:.6g}) / {unit:.6g}"

    def save(self, folder: Path) -> Path:
        """Write the note into a folder, sealed."""
        return write_sealed_json(folder / TASK_NOTE, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """List what the note says as JSON values; rows as ranges such as "0-3,7"."""
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        plain["files"] = [asdict(file) for file in self.files]
        plain["scaling"] = None if self.scaling is None else self.scaling.to_json()
        if self.split is not None:
            rows = {name: write_ranges(part) for name, part in self.split.rows.items()}
            plain["split"] = {
                "seed": self.split.seed,
                "shares": dict(self.split.shares),
                "rows": rows,
            }
        return {"schema": _SCHEMA, **plain}

    @classmethod
    def load(cls, folder: Path) -> TaskNote:
        """Read the note of a folder.

        Args:
            folder: The folder of a model, or one that `smidgen run` made.

        Returns:
            The note.

        Raises:
            StoreError: If it is missing, damaged or of another version.
        """
        path = folder / TASK_NOTE
        values = read_sealed_json(path, what="note of a task", advice=_ADVICE)
        require_schema(path, values.pop("schema", None), _SCHEMA, "task")
        with reading(path, "note of a task", _ADVICE):
            return cls._from_json(values)

    @classmethod
    def _from_json(cls, values: dict[str, Any]) -> TaskNote:
        known = {entry.name for entry in fields(cls)}
        for name in sorted(known ^ values.keys()):
            raise StoreError(
                f"it {'lacks' if name in known else 'has the unknown'} {name!r}"
            )
        types = {
            "kind": TaskKind,
            "columns": tuple[str, ...],
            "text_pair": str | None,
            "label": str | None,
            "classes": tuple[str, ...] | None,
            "max_length": int | None,
            "base": str | None,
            "target": tuple[float, float] | None,
            "shape": tuple[int, ...] | None,
            "span": tuple[float, float] | None,
        }
        plain = {
            name: convert_json(values[name], kind, name) for name, kind in types.items()
        }
        scaling, split = values["scaling"], values["split"]
        files = tuple(
            DataFile(str(file["path"]), int(file["rows"]), str(file["digest"]))
            for file in values["files"]
        )
        return cls(
            **plain,
            scaling=None if scaling is None else Scaling.from_json(scaling),
            files=files,
            split=None if split is None else _read_split(split, files),
        )


def _read_split(values: Mapping[str, Any], files: Sequence[DataFile]) -> SplitNote:
    """Read which rows went where: rows that the files have, each in one part."""
    count = sum(file.rows for file in files)
    if not all(file.rows >= 0 for file in files) or count > _MOST_ROWS:
        raise StoreError(f"its files must have 0 to {_MOST_ROWS:,} rows, got {count:,}")
    rows: dict[str, tuple[int, ...]] = {}
    left = count
    for name, part in values["rows"].items():
        rows[name] = read_ranges(part, count)
        left -= len(rows[name])
        if left < 0:
            raise StoreError(f"its parts have more rows than the {count:,} of its files")
    shares = convert_json(values["shares"], dict[str, float], "shares")
    return SplitNote(int(values["seed"]), shares, rows)


def find_note(folder: str | Path) -> TaskNote | None:
    """Read the note beside a model, or return None where there is none."""
    path = Path(folder).expanduser()
    # Not Path's own question, which raises on a name that is too long.
    return TaskNote.load(path) if os.path.isfile(path / TASK_NOTE) else None


def use_note(
    note: TaskNote,
    typed: Mapping[str, Any],
    *,
    options: Mapping[str, str],
    may_differ: Collection[str] = ("label",),
) -> TaskNote:
    """Refuse what was typed and differs from what training saw.

    Args:
        note: What training saw.
        typed: What was typed, by the fields of a note; None for what was not.
        options: The option that types each.
        may_differ: What only the user can say of new data.

    Returns:
        The note, with the typed label's column.

    Raises:
        ArgumentError: If something differs that would silently change answers.
    """
    for name, value in typed.items():
        stored = getattr(note, name)
        if value is None or name in may_differ or value == stored:
            continue
        given = value if not isinstance(value, tuple) else ",".join(value)
        seen = stored if not isinstance(stored, tuple) else ",".join(stored)
        shown = "none" if seen is None else repr(seen)
        raise ArgumentError(
            f"{options[name]} must be what training saw, {shown}, got {given!r}. Leave it "
            "out to use what the model's folder says."
        )
    label = typed.get("label")
    return note if label is None else replace(note, label=label)


def write_ranges(rows: Iterable[int]) -> str:
    """Write rows as ranges: 0-3,7."""
    spans: list[list[int]] = []
    for row in sorted(rows):
        if spans and row == spans[-1][1] + 1:
            spans[-1][1] = row
        else:
            spans.append([row, row])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in spans)


def read_ranges(text: str, count: int) -> tuple[int, ...]:
    """Read what `write_ranges` wrote of rows below a count; a row stands in it once."""
    spans: list[range] = []
    end = 0
    # Checked before anything is as long as it says.
    for written in text.split(",") if text else ():
        first, _, last = written.partition("-")
        span = range(int(first), int(last or first) + 1)
        if not end <= span.start < span.stop <= count:
            raise StoreError(
                f"its rows {written[:40]!r} must be of {count:,}, in order and each once"
            )
        spans.append(span)
        end = span.stop
    return tuple(chain.from_iterable(spans))
