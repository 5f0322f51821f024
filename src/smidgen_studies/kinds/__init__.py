"""Kinds of cells, by name: a kind is one file here and one row below.

A kind's file has `Settings` and `Data`, dataclasses of what it may be told and of what may
be told of its data, and `run`, which takes a `Job` and returns the results of a record. One
that never works on `job.device` says `ON_PROCESSOR = True`. `Settings.reported_methods` are
the names of the methods in its record, so that a study's baseline can be looked up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from smidgen.errors import ArgumentError, did_you_mean
from smidgen_studies.engine.cell import Cell, Job, read_settings

KINDS: dict[str, str] = {
    "constant": "smidgen_studies.kinds.constant",
    "dropout": "smidgen_studies.kinds.dropout",
    "ensemble": "smidgen_studies.kinds.ensemble",
    "finetune": "smidgen_studies.kinds.finetune",
    "laplace": "smidgen_studies.kinds.laplace",
    "sparse-training": "smidgen_studies.kinds.sparse_training",
    "scales": "smidgen_studies.kinds.scales",
    "swag": "smidgen_studies.kinds.swag",
    "tuning": "smidgen_studies.kinds.tuning",
    "uci-laplace": "smidgen_studies.kinds.uci_laplace",
    "uci-map": "smidgen_studies.kinds.uci_map",
    "uci-swag": "smidgen_studies.kinds.uci_swag",
}
"""Modules by name; they are imported when a cell of theirs is, for they are heavy."""

Run = Callable[[Job], Mapping[str, Any]]


def kind_of(name: str) -> Run:
    """Find what does the cells of a kind.

    Args:
        name: A name of `KINDS`, or the dotted name of a module of one's own.

    Returns:
        Its `run`.
    """
    run: Run = _module(name).run
    return run


def on_processor(name: str) -> bool:
    """Whether the cells of a kind stay on the processor, whatever devices there are."""
    return bool(getattr(_module(name), "ON_PROCESSOR", False))


def check_settings(cell: Cell) -> None:
    """Refuse a cell that its kind could not do, before anything is started."""
    module = _module(cell.kind)
    read_settings(module.Settings, cell.settings, f"cells {cell.name!r}")
    data_of(cell)


def data_of(cell: Cell) -> Any:
    """What a study says of a cell's data, as the cell's kind takes it."""
    where = f"data {cell.data.get('name')!r}"
    return read_settings(_module(cell.kind).Data, cell.data, where)


def methods_of(cell: Cell) -> Sequence[str] | None:
    """Name the methods that a cell reports; None if its kind, not ours, does not say."""
    told = read_settings(_module(cell.kind).Settings, cell.settings, cell.name)
    return getattr(told, "reported_methods", None)


def defaults_of(cell: Cell) -> dict[str, Any]:
    """What a cell's kind takes for all that its study does not say, as JSON has it."""
    told = read_settings(_module(cell.kind).Settings, cell.settings, cell.name)
    found = {n: v for n, v in vars(told).items() if n not in cell.settings}
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def _module(name: str) -> Any:
    try:
        found = import_module(KINDS.get(name, name))
    except ModuleNotFoundError as error:
        raise ArgumentError(
            f"kind must be one of {', '.join(KINDS)}, or a module that can be imported, "
            f"got {name!r} ({error}).{did_you_mean(name, KINDS)}"
        ) from error
    absent = [part for part in ("Settings", "Data", "run") if not hasattr(found, part)]
    if absent:
        raise ArgumentError(
            f"kind {name!r} must have Settings, Data and run(job), got no "
            f"{' and no '.join(absent)}. Add what is missing."
        )
    return found
