"""Tables of trials: what was tried on validation data, and how it scored.

Trials of one method that set the same settings make one table: a row for one setting, a
grid for two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smidgen.report.formats import format_nll, format_percent, format_significant

WORDS = {
    "learning_rate": "rate",
    "temperature": "T",
    "scale": "first scale",
    "weight_decay": "weight decay",
}
Trial = Mapping[str, Any]
_MOST_NAMED = 3


@dataclass(frozen=True)
class TrialTable:
    """Trials row by row, None where there was none: a column per value of one setting."""

    method: str
    label: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    trials: tuple[tuple[Trial | None, ...], ...]
    best: Trial | None


def lay_out_trials(trials: Sequence[Trial]) -> list[TrialTable]:
    """Lay trials out as tables."""
    groups: dict[tuple[str, ...], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial["method"], *trial["told"]), []).append(trial)
    return [_lay_out_group(group) for group in groups.values()]


def describe_trial(trial: Trial | None) -> str:
    """Show a trial in a cell: validation NLL and accuracy, and the ratio of its scales."""
    if trial is None:
        return ""
    if trial["validation_nll"] is None:
        return "no finite loss"
    words = [format_nll(trial["validation_nll"])]
    if trial["validation_accuracy"] is not None:
        words.append(format_percent(trial["validation_accuracy"]))
    if trial.get("median_scale") is not None:
        words.append(f"σ/σ₀ {format_significant(trial['median_scale'])}")
    return ", ".join(words)


def describe_edges(choices: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say which choices lie at an end of what was tried."""
    labels_by_edge: dict[str, list[str]] = {}
    for label, choice in choices.items():
        for name in choice["at_edge"]:
            tried = choice["tried"][name]
            value = choice["values"][name]
            end = "largest" if value == tried[-1] else "smallest"
            words = f"{WORDS.get(name, name)} = {value:g}, the {end} of {len(tried)} tried"
            labels_by_edge.setdefault(words, []).append(label)
    if not choices or not any(choice["tried"] for choice in choices.values()):
        return []
    if not labels_by_edge:
        return ["No chosen setting lies at an end of what was tried."]
    return [
        f"At an end of what was tried, so better may lie beyond: {words} ({_name_some(labels)})."
        for words, labels in labels_by_edge.items()
    ]


def _name_some(labels: Sequence[str]) -> str:
    more = len(labels) - _MOST_NAMED
    named = ", ".join(labels[:_MOST_NAMED])
    return f"{named} and {more} more" if more > 0 else named


def _lay_out_group(group: Sequence[Trial]) -> TrialTable:
    axes = {
        name: sorted({trial["values"][name] for trial in group})
        for name in group[0]["told"]
    }
    varied = [name for name, values in axes.items() if len(values) > 1]
    column = varied[0] if varied else group[0]["told"][0]
    row = varied[1] if len(varied) > 1 else None
    by_values = {
        (trial["values"][column], row and trial["values"][row]): trial for trial in group
    }
    row_values: Sequence[float | None] = axes[row] if row else [None]
    scored = [trial for trial in group if trial["validation_nll"] is not None]
    return TrialTable(
        method=group[0]["method"],
        label=group[0]["label"],
        columns=tuple(_describe_setting(column, value) for value in axes[column]),
        rows=tuple(
            _describe_setting(row, value) if row and value is not None else ""
            for value in row_values
        ),
        trials=tuple(
            tuple(by_values.get((value, row_value)) for value in axes[column])
            for row_value in row_values
        ),
        best=min(scored, key=lambda trial: trial["validation_nll"], default=None),
    )


def _describe_setting(name: str, value: float) -> str:
    return f"{WORDS.get(name, name)} {value:g}"
