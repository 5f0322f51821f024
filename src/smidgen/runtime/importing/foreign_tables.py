"""Tables of `datasets` and pandas, recognised where those are imported, and not before."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from smidgen.errors import ArgumentError

# Of each package, the classes whose rows are in memory or on the disk.
_TABLES = {"datasets": "Dataset", "pandas": "DataFrame"}
# Those that are something else, and what to do about it.
_REFUSED = {
    ("datasets", "DatasetDict"): "Pass one split, such as dataset['train'].",
    ("datasets", "IterableDataset"): (
        "Pass a DataLoader over it, or datasets.Dataset.from_list(list(dataset.take(1000)))."
    ),
    ("datasets", "IterableDatasetDict"): "Pass a DataLoader over one split.",
    ("pandas", "Series"): "Pass its data frame, series.to_frame('text').",
}


def name_table(value: object) -> str | None:
    """Name what kind of table a value is: "Dataset", "DataFrame" or None.

    Args:
        value: Anything.

    Returns:
        The name of its class, if that is one of a table.
    """
    for package, name in _TABLES.items():
        if _is_a(value, package, name):
            return name
    return None


def refuse_other_tables(argument: str, value: object) -> None:
    """Refuse what holds several tables, or one that cannot be read again.

    Args:
        argument: What it was given as.
        value: Anything.

    Raises:
        ArgumentError: If it is such a thing.
    """
    for (package, name), advice in _REFUSED.items():
        if _is_a(value, package, name):
            raise ArgumentError(
                f"{argument} must be one table of rows, got a {name}. {advice}"
            )


def read_foreign_columns(table: Any) -> tuple[Mapping[str, Sequence[Any]], Any]:
    """Read the columns of a table as lists of plain values.

    Args:
        table: What `name_table` has a name for.

    Returns:
        The columns, and of a `Dataset` its features, which may name classes.
    """
    if name_table(table) == "DataFrame":
        return {str(name): table[name].tolist() for name in table.columns}, {}
    plain = table.with_format(None)
    return {name: list(plain[name]) for name in plain.column_names}, plain.features


def _is_a(value: object, package: str, name: str) -> bool:
    """Whether a value is of a class, if its package was imported by whoever made it."""
    kind = getattr(sys.modules.get(package), name, None)
    return isinstance(kind, type) and isinstance(value, kind)
