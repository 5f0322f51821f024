"""What a table is to predict: classes by name, or a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from smidgen.errors import DataError
from smidgen.integrations.labels import Labels, format_label, parse_label, read_labels

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
            regression, and whole numbers are classes if they have at most 20 values.
        names: The names of the classes, where they are known.

    Returns:
        The labels.

    Raises:
        DataError: If a label is missing or does not suit the others.
    """
    plain = [_drop_zero(value) for value in values]
    if names is not None:
        labels, known = read_labels(plain, tuple(names), path)
        return Target(labels, known)
    parsed = [parse_label(value, row, path) for row, value in enumerate(plain, 1)]
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
    return _as_classes(parsed, path, kind)


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
    assumed = None
    if kind is None and not any(texts) and len(order) > 2:
        assumed = (
            f"the label has {len(order)} different whole numbers, taken for classes; pass "
            "--regression to predict a number"
        )
    return Target(
        tuple(numbers[value] for value in values), tuple(map(str, order)), assumed
    )


def _drop_zero(value: Any) -> Any:
    """Read 3.0 as 3, as numbers come from tables with missing values."""
    is_whole = isinstance(value, float) and value.is_integer()
    return int(value) if is_whole else value
