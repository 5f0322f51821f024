"""Labels of a table: class numbers, class names or the targets of a regression."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from smidgen.errors import DataError

Labels: TypeAlias = tuple[int, ...] | tuple[float, ...]
"""Class numbers from 0, or the targets of a regression."""

_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def read_labels(
    values: Sequence[Any], names: tuple[str, ...] | None, path: Path
) -> tuple[Labels, tuple[str, ...] | None]:
    """Read class numbers, class names or regression targets, and the names of the classes."""
    if names is not None:
        numbers = [_class_number(v, names, row, path) for row, v in enumerate(values, 1)]
        return tuple(numbers), names
    labels = [parse_label(value, row, path) for row, value in enumerate(values, 1)]
    named = [isinstance(value, str) for value in labels]
    if any(named) != all(named):
        row = named.index(not named[0])
        raise DataError(
            f"label must be all numbers or all names, got {labels[0]!r} in row 1 and "
            f"{labels[row]!r} in row {row + 1} of {path}. Fix the row, or give "
            "label_names."
        )
    if all(named):
        names = tuple(sorted(set(labels)))
        number_of = {name: number for number, name in enumerate(names)}
        return tuple(number_of[value] for value in labels), names
    if any(isinstance(value, float) for value in labels):
        return tuple(float(value) for value in labels), None
    if min(labels) < 0:
        raise DataError(
            f"label must be a class number from 0, got {min(labels)} in row "
            f"{labels.index(min(labels)) + 1} of {path}. Remove unlabelled rows, or write "
            "regression targets with a decimal point."
        )
    return tuple(labels), None


def parse_label(value: Any, row: int, path: Path) -> Any:
    """Parse one label: an int, a finite float or a name."""
    if isinstance(value, str):
        value = value.strip()
        if _WHOLE.fullmatch(value):
            return int(value)
        if _DECIMAL.fullmatch(value) or value.lower() == "nan":
            value = float(value)
    if isinstance(value, bool):
        return int(value)
    if value is None or value == "":
        raise DataError(
            f"label must be given in every row, got none in row {row} of {path}. Label "
            "or remove the row, or give label=None to read texts only."
        )
    finite = not isinstance(value, float) or math.isfinite(value)
    if not isinstance(value, (int, float, str)) or not finite:
        raise DataError(
            f"label must be a finite number or a name, got {format_label(value)} in row "
            f"{row} of {path}. Fix or remove the row."
        )
    return value


def _class_number(value: Any, names: tuple[str, ...], row: int, path: Path) -> int:
    """The class number of a label whose class names are known."""
    if str(value).strip() in names:
        return names.index(str(value).strip())
    value = parse_label(value, row, path)
    # Among names such as "1" to "5" a number that is none of them is a mistake.
    numbered = any(_WHOLE.fullmatch(name) for name in names)
    if isinstance(value, int) and not numbered and 0 <= value < len(names):
        return value
    numbers = "" if numbered else f" or a class number from 0 to {len(names) - 1}"
    raise DataError(
        f"label must be one of {', '.join(names)}{numbers}, got {format_label(value)} in row "
        f"{row} of {path}. Fix the row or label_names."
    )


def format_label(value: object) -> str:
    """Format a value for an error message: on one line, and cut if it is long."""
    text = str(value) if isinstance(value, Exception) else repr(value)
    text = " ".join(text.split())
    return text if len(text) <= 80 else text[:77] + "..."
