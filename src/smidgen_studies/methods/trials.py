"""Trials: cells that score validation data only, so that others can take the best.

What a cell is not told, it takes from the trial of the lowest validation NLL among the
cells it needs. Trials may themselves take from trials before them. A choice remembers all
values that were tried, so it knows whether it lies at an end of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smidgen.errors import ArgumentError
from smidgen_studies.engine.cell import FinishedCell

Values = Mapping[str, float]


@dataclass(frozen=True)
class TrialChoice:
    """What was chosen, and what it was chosen from."""

    values: Values
    tried: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def at_edge(self) -> tuple[str, ...]:
        """Settings whose best value is the largest or smallest tried, and not zero."""
        return tuple(
            name
            for name, tried in self.tried.items()
            if self.values[name] in (tried[0], tried[-1]) and self.values[name] != 0
        )

    def to_dict(self) -> dict[str, Any]:
        """As a record holds it."""
        return {
            "values": dict(self.values),
            "tried": {name: list(tried) for name, tried in self.tried.items()},
            "at_edge": list(self.at_edge),
        }


def choose_values(
    told: Mapping[str, float | None], trials: Sequence[FinishedCell], otherwise: Values
) -> TrialChoice:
    """Settle every setting: as told, or that of the best trial, or a default."""
    given = {name: value for name, value in told.items() if value is not None}
    if not trials:
        return TrialChoice({**otherwise, **given})
    found = {each.name: each.record.results.get("trial") for each in trials}
    strange = [name for name, trial in found.items() if trial is None]
    if strange:
        raise ArgumentError(
            f"needs must be trials, cells with report = false, got {strange[0]!r}."
        )
    known = {n: t for n, t in found.items() if t and t["validation_nll"] is not None}
    if not known and set(given) >= set(told):
        return TrialChoice({**otherwise, **given})
    if not known:
        raise ArgumentError(
            f"needs must have a trial with a finite validation NLL, got {list(found)}. "
            "Try lower rates."
        )
    best = min(known, key=lambda name: (known[name]["validation_nll"], name))
    values = {**otherwise, **known[best]["values"], **given}
    tried = {
        name: all_tried
        for name in values
        if name not in given and len(all_tried := _tried(name, trials)) > 1
    }
    return TrialChoice(values, tried)


def describe_trial(
    name: str,
    label: str,
    told: Iterable[str],
    choice: TrialChoice,
    nll: float | None = None,
    accuracy: float | None = None,
) -> dict[str, Any]:
    """Say what a trial tried and what it came to, as `choose_values` and the report read it."""
    return {
        "method": name,
        "label": label,
        "told": list(told),
        "values": dict(choice.values),
        "validation_nll": nll,
        "validation_accuracy": accuracy,
    }


def _tried(name: str, trials: Sequence[FinishedCell]) -> tuple[float, ...]:
    """All values of a setting in these trials and in those that they chose from."""
    found: set[float] = set()
    for each in trials:
        results = each.record.results
        found.add(results["trial"]["values"][name])
        found.update(results["choice"]["tried"].get(name, ()))
    return tuple(sorted(found))
