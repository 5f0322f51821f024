"""Trials: cells that score validation data only, so that others can take the best.

A cell takes the settings it leaves open from the trial of lowest validation NLL among the
cells it needs. Trials may themselves take from earlier trials. A choice remembers all values
that were tried, so it knows whether it lies at an end of them.
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
    """What was chosen, and all values tried of settings for which there were several."""

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
    """Settle every setting: as told, as in the best trial, or a default."""
    given = {name: value for name, value in told.items() if value is not None}
    if not trials:
        return TrialChoice({**otherwise, **given})
    results: dict[str, Any] = {n.name: n.record.results.get("trial") for n in trials}
    for name, trial in results.items():
        if trial is None:
            raise ArgumentError(
                f"needs must be trials, cells with report = false, got {name!r}."
            )
    nlls = ((trial["validation_nll"], name) for name, trial in results.items())
    finite = [(nll, name) for nll, name in nlls if nll is not None]
    if not finite and set(given) >= set(told):
        return TrialChoice({**otherwise, **given})
    if not finite:
        raise ArgumentError(
            f"needs must have a trial with a finite validation NLL, got {list(results)}. "
            "Try lower rates."
        )
    values = {**otherwise, **results[min(finite)[1]]["values"], **given}
    tried = {
        name: all_tried
        for name in values
        if name not in given and len(all_tried := _tried(name, trials)) > 1
    }
    return TrialChoice(values, tried)


def trial_results(
    name: str,
    label: str,
    told: Iterable[str],
    choice: TrialChoice,
    nll: float | None = None,
    accuracy: float | None = None,
) -> dict[str, Any]:
    """Describe a trial for its record; `nll` is None if its loss was not finite."""
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
    values: set[float] = set()
    for cell in trials:
        results = cell.record.results
        values.add(results["trial"]["values"][name])
        values.update(results["choice"]["tried"].get(name, ()))
    return tuple(sorted(values))
