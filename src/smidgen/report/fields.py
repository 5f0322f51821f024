"""Reading the results of a record: the one place that knows where things lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smidgen.errors import DataError
from smidgen.report.names import label_method
from smidgen.runtime.record import BASELINES, Record

MAP, TEMPERATURE = BASELINES
_PREFERRED = "sparse-kfac"

Interval = Mapping[str, float]
"""A value, and with it `low` and `high` where they are known."""


def methods(record: Record) -> list[Mapping[str, Any]]:
    """List the methods of a record, in its order.

    Args:
        record: The record.

    Returns:
        One mapping per method, each with a name that is its own.

    Raises:
        DataError: If a method has no name, or two share one.
    """
    told = record.results.get("methods")
    # Records of one's own may lay theirs out otherwise: no page knows those.
    found: list[Mapping[str, Any]] = list(told) if isinstance(told, list | tuple) else []
    names = [method.get("name") for method in found]
    for name in names:
        if not isinstance(name, str) or names.count(name) > 1:
            raise DataError(
                f"methods of a record must have names of their own, got {names}. "
                "Name each method once."
            )
    return found


def label(method: Mapping[str, Any]) -> str:
    """Name a method as people read it."""
    text = method.get("label") or label_method(method["name"])
    # Records written before 0.1 call an affine layer a map.
    return str(text).replace("ll maps", "ll layers")


def named(record: Record, name: str) -> Mapping[str, Any] | None:
    """Find a method by its name."""
    return next((m for m in methods(record) if m["name"] == name), None)


def primary(record: Record) -> Mapping[str, Any] | None:
    """Find the Bayesian method the verdict is about.

    Args:
        record: The record.

    Returns:
        What validation data chose in a ramping study; else Sparse-KFAC where it was
        run, else the last method that is no baseline.
    """
    best = named(record, str((ramp(record) or {}).get("best")))
    if best is not None:
        return best
    candidates = [m for m in methods(record) if m["name"] not in BASELINES]
    preferred = [m for m in candidates if m["name"] == _PREFERRED]
    return next(iter(preferred or reversed(candidates)), None)


def ramp(record: Record) -> Mapping[str, Any] | None:
    """Read the validation curves of a ramping study, if the record is of one."""
    found: Mapping[str, Any] | None = record.results.get("ramp")
    return found or None


def score(method: Mapping[str, Any] | None, name: str) -> Interval | None:
    """Read one score of a method, if it was measured."""
    found: Interval | None = ((method or {}).get("scores") or {}).get(name)
    return found


def difference(record: Record, method: str, baseline: str, score: str) -> Interval | None:
    """Read a paired difference, method less baseline, if it was measured with bounds.

    Args:
        record: The record.
        method: Name of the method.
        baseline: Name of the method it is compared with.
        score: Name of the score.

    Returns:
        The difference and its interval.
    """
    wanted = (method, baseline, score)
    for entry in record.results.get("differences") or ():
        given = (entry.get("method"), entry.get("baseline"), entry.get("score"))
        if given == wanted and bounded(entry):
            found: Interval = entry
            return found
    return None


def bounded(interval: Interval) -> bool:
    """Say whether a value comes with both of its bounds."""
    return all(interval.get(key) is not None for key in ("value", "low", "high"))


def shifted_sets(record: Record) -> list[str]:
    """List the shifted data sets any method was asked to detect, in order."""
    found: dict[str, None] = {}
    for method in methods(record):
        found.update(dict.fromkeys(method.get("detection") or {}))
    return list(found)


def by_method(record: Record, part: str) -> dict[str, Any]:
    """Collect one part of every method that has it, by method name."""
    return {m["name"]: m[part] for m in methods(record) if m.get(part)}
