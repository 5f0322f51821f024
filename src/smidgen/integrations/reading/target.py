"""What a table is to predict: classes by name, or a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from smidgen.errors import DataError
from smidgen.integrations.labels import Labels, format_label, parse_label

TargetKind = Literal["classes", "regression"]
_MOST_WHOLE_CLASSES = 20
"""Whole numbers with more different values than this are taken for a regression."""


@dataclass(frozen=True)
class Target:
    """Class numbers with the names of all classes, or numbers, whose `names` are None.

    `assumed` says what was taken for granted where the values could mean either.
    """

    labels: Labels
    names: tuple[str, ...] | None = None
    assumed: str | None = None


def read_target(
    values: Sequence[Any],
    path: Path,
    *,
    kind: TargetKind | None = None,
    names: Sequence[str] | None = None,
) -> Target:
    """Read a column of labels.

    Args:
        values: The column, as it was read.
        path: The file, for errors.
        kind: What the labels are. By default texts are classes, decimal numbers are a
            regression, and whole ones, also written as 1.0, are classes if they have at most
            20 values.
        names: The names of the classes, where they are known.

    Returns:
        The labels.

    Raises:
        DataError: If a label is missing or does not suit the others.
    """
    read = [parse_label(value, row, path) for row, value in enumerate(values, 1)]
    parsed = [_drop_zero(label) for label in read]
    if names is not None:
        return _as_known_classes(parsed, tuple(names), path)
    texts = [isinstance(label, str) for label in parsed]
    if kind == "regression":
        if any(texts):
            row = texts.index(True)
            raise DataError(
                f"label must be a number in every row for --regression, got "
                f"{format_label(values[row])} in row {row + 1} of {path}. Fix the row, or "
                "leave --regression out."
            )
        return Target(tuple(map(float, parsed)))
    if kind is None and not any(texts):
        if any(isinstance(label, float) for label in parsed):
            return Target(tuple(map(float, parsed)))
        if len(set(parsed)) > _MOST_WHOLE_CLASSES:
            return Target(
                tuple(map(float, parsed)),
                assumed=f"the label has {len(set(parsed))} different whole numbers, so a "
                "number is predicted; pass --classes if each is a class",
            )
    target = _as_classes(parsed, path, kind)
    assert target.names is not None
    # Two whole numbers are classes to everyone, unless they were written as decimal ones.
    is_clear = len(target.names) == 2 and not any(isinstance(x, float) for x in read)
    if kind is None and not any(texts) and not is_clear:
        assumed = (
            f"the label has {len(target.names)} different whole numbers, taken for classes; "
            "pass --regression to predict a number"
        )
        return replace(target, assumed=assumed)
    return target


def _as_known_classes(parsed: list[Any], names: tuple[str, ...], path: Path) -> Target:
    """Number labels by their names alone, as training read its own."""
    # Not by their numbers: nobody who wrote 0 meant the first name of the alphabet.
    numbers = {name: number for number, name in enumerate(names)}
    for row, label in enumerate(parsed, 1):
        if str(label) not in numbers:
            raise DataError(
                f"label must be one of {', '.join(names)}, as in training, got "
                f"{format_label(label)} in row {row} of {path}. Write it as training saw it, or "
                "remove the row."
            )
    return Target(tuple(numbers[str(label)] for label in parsed), names)


def _as_classes(parsed: list[Any], path: Path, kind: TargetKind | None) -> Target:
    """Number the classes in the order of their names, or of their numbers."""
    texts = [isinstance(label, str) for label in parsed]
    if kind is None and any(texts) != all(texts):
        row = texts.index(not texts[0])
        raise DataError(
            f"label must be all numbers or all names, got {parsed[0]!r} in row 1 and "
            f"{parsed[row]!r} in row {row + 1} of {path}. Fix the row, or pass --classes to "
            "take numbers as names."
        )
    values = list(map(str, parsed)) if any(texts) else parsed
    order = sorted(set(values))
    if len(order) < 2:
        raise DataError(
            f"label must have 2 classes or more, got {order[0]!r} alone in {path}. Add rows "
            "of another class, or name another column."
        )
    numbers = {value: number for number, value in enumerate(order)}
    return Target(tuple(numbers[value] for value in values), tuple(map(str, order)))


def _drop_zero(value: Any) -> Any:
    """Read 3.0 as 3, as numbers come from tables with missing values."""
    is_whole = isinstance(value, float) and value.is_integer()
    return int(value) if is_whole else value
