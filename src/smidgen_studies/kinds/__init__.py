"""Kinds of cells, by name: a kind is one file here and one row below.

A kind is a module (or a class) with `Settings` and `Data`, dataclasses of its settings and
of how its data are described, and `run`, which takes a `Job` and returns the results of a
record. One that never uses `job.device` has `ON_PROCESSOR = True`.
`Settings.reported_methods` are the names of the methods in its record, by which the
baseline of a study is checked.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

from smidgen.errors import ArgumentError, did_you_mean

_HERE = "smidgen_studies.kinds"
KINDS: dict[str, str] = {
    "answers-ensemble": f"{_HERE}.answers.ensemble",
    "answers-map": f"{_HERE}.answers.point",
    "answers-posterior": f"{_HERE}.answers.posterior",
    "constant": f"{_HERE}.constant",
    "decisions-images": f"{_HERE}.decisions.images",
    "decisions-text": f"{_HERE}.decisions.text",
    "dropout": f"{_HERE}.dropout",
    "ensemble": f"{_HERE}.ensemble",
    "finetune": f"{_HERE}.finetune",
    "label-efficiency": f"{_HERE}.decisions.labels",
    "laplace": f"{_HERE}.laplace",
    "recipe": f"{_HERE}.recipe",
    "sparse-training": f"{_HERE}.sparse_training",
    "scales": f"{_HERE}.scales",
    "swag": f"{_HERE}.swag",
    "tuning": f"{_HERE}.tuning",
    "uci-laplace": f"{_HERE}.uci_posterior.Laplace",
    "uci-map": f"{_HERE}.uci_map",
    "uci-swag": f"{_HERE}.uci_posterior.Swag",
    "weight-samples": f"{_HERE}.weight_samples",
}
"""Dotted names; they are imported when a cell of theirs is, because they are heavy."""


def find_kind(name: str) -> Any:
    """Import a kind by its name in `KINDS`, or by the dotted name of a user's own."""
    try:
        kind = resolve_name(KINDS.get(name, name))
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        raise ArgumentError(
            f"kind must be one of {', '.join(KINDS)}, or a module that can be imported, "
            f"got {name!r} ({error}).{did_you_mean(name, KINDS)}"
        ) from error
    absent = [part for part in ("Settings", "Data", "run") if not hasattr(kind, part)]
    if absent:
        raise ArgumentError(
            f"kind {name!r} must have Settings, Data and run(job), got no "
            f"{' and no '.join(absent)}. Add what is missing."
        )
    return kind
