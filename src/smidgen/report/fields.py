"""The one reader of a record's results: nothing else knows where things are in them."""

from __future__ import annotations

from collections.abc import Mapping
from math import isclose
from typing import Any

import torch

from smidgen.errors import DataError
from smidgen.outputs.chance import expected_gap
from smidgen.report.names import label_method
from smidgen.runtime.record import BASELINES, Record

MAP, TEMPERATURE = BASELINES
POINT = "point"
"""The method of a posterior that is the point estimate with a temperature or fitted noise."""
_PREFERRED = "sparse-kfac"
_OLDER = {
    "Temperature": "Temperature scaling",
    "MAP, calibrated": "Kept temperature scaling",
}
_ECE = ("ece_equal_mass", "ece")
CALIBRATION = (*_ECE, "ece_equal_width")
"""Sample calibration errors: chance adds to each, so its floor is shown beside it."""
LOSS = "nll"
"""The score by which methods are compared."""
SQUARED_CALIBRATION = "squared_calibration"
"""The score by which calibration is compared: its estimate has no bias."""

MethodFields = Mapping[str, Any]
"""A method of a record: its name, scores, settings and curves."""
Estimate = Mapping[str, float]
"""A measured `value`, with `low` and `high` where its interval is known."""


def read_part(record: Record, name: str) -> Any:
    """Read one part of the results by name; None if it is absent or empty."""
    return record.results.get(name) or None


def list_methods(record: Record) -> list[MethodFields]:
    """List the methods of a record, in its order."""
    part = read_part(record, "methods")
    # A user's own kind of record may have other methods: no page knows those.
    methods: list[MethodFields] = list(part) if isinstance(part, list | tuple) else []
    names = [method.get("name") for method in methods]
    for name in names:
        if not isinstance(name, str) or names.count(name) > 1:
            raise DataError(
                f"methods of a record must have names of their own, got {names}. Give each "
                "a different name."
            )
    return methods


def list_shown(record: Record) -> list[MethodFields]:
    """List the methods that tables and figures show.

    A posterior that is the second baseline itself, as bayesify keeps it where nothing is
    better, has the same numbers: it is marked there and has no row or curve of its own.

    Args:
        record: The record, which stays as it is.

    Returns:
        The methods in its order, the baseline with another label.
    """
    if find_kept(record) is None:
        return list_methods(record)
    return [
        {**method, "label": f"{read_label(method)} (kept)"}
        if method["name"] == TEMPERATURE
        else method
        for method in list_methods(record)
        if method["name"] != POINT
    ]


def find_kept(record: Record) -> MethodFields | None:
    """Find the posterior that is the second baseline itself, with the same scores."""
    kept, baseline = find_method(record, POINT), find_method(record, TEMPERATURE)
    scores = (kept or {}).get("scores") or {}
    theirs = (baseline or {}).get("scores") or {}
    if not scores or scores.keys() != theirs.keys():
        return None
    values = [(scores[name].get("value"), theirs[name].get("value")) for name in scores]
    same = all(a == b or (a and b and isclose(a, b, rel_tol=1e-6)) for a, b in values)
    return kept if same else None


def read_label(method: MethodFields) -> str:
    """Name a method as people read it."""
    text = method.get("label") or label_method(method["name"])
    # Records written before 0.1 call some things otherwise.
    return _OLDER.get(str(text), str(text).replace("ll maps", "ll layers"))


def find_method(record: Record, name: str) -> MethodFields | None:
    """Find a method by its name."""
    return next((m for m in list_methods(record) if m["name"] == name), None)


def find_primary(record: Record) -> MethodFields | None:
    """Find the Bayesian method that the verdict is about."""
    chosen = (read_part(record, "ramp") or {}).get("best") or read_part(record, "primary")
    best = find_method(record, str(chosen))
    if best is not None:
        return best
    candidates = [m for m in list_methods(record) if m["name"] not in BASELINES]
    preferred = [m for m in candidates if m["name"] == _PREFERRED]
    return next(iter(preferred or reversed(candidates)), None)


def read_score(method: MethodFields | None, name: str) -> Estimate | None:
    """Read one score of a method, if it was measured."""
    score: Estimate | None = ((method or {}).get("scores") or {}).get(name)
    return score


def find_calibration_score(method: MethodFields | None) -> str | None:
    """Name the calibration error that a method was scored by, if any."""
    return next((name for name in _ECE if read_score(method, name)), None)


def read_floor(method: MethodFields | None, name: str) -> float | None:
    """Read what chance alone gives for a calibration error, if it is known."""
    method = method or {}
    stored = (read_score(method, name) or {}).get("floor")
    curve = method.get("reliability")
    if stored is not None or name != _ECE[0] or not curve:
        return stored
    # Older records hold no floor, but ten bins of as many answers each; the error has
    # twenty, so each bin is halved.
    halves = [
        torch.full((size,), float(confidence), dtype=torch.float64)
        for confidence, count in zip(curve["confidence"], curve["count"], strict=True)
        for size in (int(count) // 2, int(count) - int(count) // 2)
    ]
    return sum(map(expected_gap, halves)) / max(1, sum(map(len, halves)))


def read_squared_calibration(method: MethodFields) -> float | None:
    """Estimate the squared calibration error, without bias, from the reliability curve."""
    curve = method.get("reliability")
    if not curve:
        return None
    rows = zip(curve["confidence"], curve["accuracy"], curve["count"], strict=True)
    # The variance of a mean of n answers is a(1 − a)/(n − 1): less it, a square has no bias.
    terms = [
        (count, (accuracy - confidence) ** 2 - accuracy * (1 - accuracy) / (count - 1))
        for confidence, accuracy, count in rows
        if count > 1
    ]
    answers = sum(count for count, _ in terms)
    return sum(count * term for count, term in terms) / answers if answers else None


def is_regression(record: Record) -> bool:
    """Say whether predictions are numbers: those are never right or wrong."""
    methods = list_methods(record)
    return any(read_score(method, "rmse") for method in methods)


def name_scaling(record: Record) -> str:
    """Say what the second baseline does to the point estimate, in two words."""
    return "fitted noise" if is_regression(record) else "temperature scaling"


def read_difference(
    record: Record, method: str, baseline: str, score: str
) -> Estimate | None:
    """Read a paired difference, method minus baseline, if it was measured with bounds."""
    for entry in read_part(record, "differences") or ():
        names = (entry.get("method"), entry.get("baseline"), entry.get("score"))
        if names == (method, baseline, score) and has_bounds(entry):
            difference: Estimate = entry
            return difference
    return None


def has_bounds(estimate: Estimate) -> bool:
    """Say whether a value comes with both ends of its interval."""
    return all(estimate.get(key) is not None for key in ("value", "low", "high"))


def collect_part(record: Record, part: str) -> dict[str, Any]:
    """Collect one part of every method that has it, by method name."""
    return {m["name"]: m[part] for m in list_shown(record) if m.get(part)}


def read_max_error(record: Record) -> float | None:
    """Read the share of errors that answers may have in the first place, if it was named."""
    error: float | None = (read_part(record, "decisions") or {}).get("max_error")
    return error


def read_automation(method: MethodFields | None, max_error: float) -> Estimate | None:
    """Read which share of the answers a method may give with so few errors among them."""
    entries = (method or {}).get("automation") or ()
    return next((e for e in entries if e["max_error"] == max_error), None)


def list_compared(record: Record) -> list[MethodFields]:
    """List the point estimate, its rescaling and the method that the verdict is about."""
    names = (MAP, TEMPERATURE, (find_primary(record) or {}).get("name"))
    shown = {method["name"]: method for method in list_shown(record)}
    return [shown[name] for name in names if name in shown]
