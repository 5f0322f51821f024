"""`Answers`: what a predictor says of rows, for people and for programs.

Names of classes, sets, intervals, and when to ask somebody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from textwrap import shorten
from typing import Any, overload

from torch import Tensor

from smidgen.decide import Rules
from smidgen.outputs.predictive import ClassPredictive, GaussianPredictive, Predictive
from smidgen.runtime.artifact import dump_json
from smidgen.runtime.showing.html import Printed, PrintedTable, ShownAsTable
from smidgen.workflows.run.task_model import TaskModel

_SHOWN, _CELL = 10, 30


@dataclass(frozen=True, slots=True)
class Answer:
    """What a predictor says of one row; None for what does not apply, or has no rule.

    Args:
        answer: The name of the class, or the number.
        confidence: The probability of that class.
        probabilities: The probability of each class, by name.
        set: The classes among which the true one is, as often as was promised.
        low: The lower end of the number's interval.
        high: The upper end.
        abstain: Whether to ask a person rather than to take the answer.
        strange: Whether the row is unlike those of training.
    """

    answer: str | float
    confidence: float | None = None
    probabilities: Mapping[str, float] | None = None
    set: tuple[str, ...] | None = None
    low: float | None = None
    high: float | None = None
    abstain: bool | None = None
    strange: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """List what applies, ready for JSON."""
        named = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        if self.set is not None:
            named["set"] = list(self.set)
        if self.probabilities is not None:
            named["probabilities"] = dict(self.probabilities)
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, eq=False, repr=False)
class Answers(ShownAsTable, Sequence[Answer]):
    """What a predictor says of rows, in their order.

    Args:
        columns: What is said of each row, by the name of `Answer`'s field: those that apply.
        classes: The names of the classes; None for a regression.
        chances: The probability of each class, (N, C); None for a regression.
    """

    columns: Mapping[str, Sequence[Any]]
    classes: tuple[str, ...] | None = None
    chances: Tensor | None = None

    def __len__(self) -> int:
        return len(self.columns["answer"])

    @overload
    def __getitem__(self, index: int) -> Answer: ...

    @overload
    def __getitem__(self, index: slice) -> Answers: ...

    def __getitem__(self, index: int | slice) -> Answer | Answers:
        """Take one answer, or several."""
        taken: dict[str, Any] = {
            name: column[index] for name, column in self.columns.items()
        }
        if isinstance(index, slice):
            chances = None if self.chances is None else self.chances[index]
            return Answers(taken, self.classes, chances)
        if self.chances is not None:
            row = self.chances[index].tolist()
            taken["probabilities"] = dict(zip(self.classes or (), row, strict=True))
        return Answer(**taken)

    def __repr__(self) -> str:
        return str(self)

    def printed_parts(self) -> list[Printed]:
        """List the table of the first answers, and how many more there are."""
        first = [map(_show, column[:_SHOWN]) for column in self.columns.values()]
        rows = [list(self.columns), *map(list, zip(*first, strict=True))]
        parts: list[Printed] = [PrintedTable(rows, left=range(len(self.columns)))]
        more = len(self) - _SHOWN
        return [*parts, f"… and {more:,} more"] if more > 0 else parts

    def to_dicts(self) -> list[dict[str, Any]]:
        """List the answers as dicts of what applies, ready for JSON."""
        return [answer.to_dict() for answer in self]

    def to_json(self) -> str:
        """Write the answers as a JSON array of objects."""
        return dump_json(self.to_dicts())

    def to_columns(self) -> dict[str, list[Any]]:
        """List one value a row by column, for a table: the classes of a set joined by "|"."""
        columns = {name: list(column) for name, column in self.columns.items()}
        if "set" in columns:
            columns["set"] = ["|".join(names) for names in columns["set"]]
        return columns


def make_answers(task: TaskModel, rules: Rules, predictive: Predictive) -> Answers:
    """Make answers of a predictive.

    Args:
        task: The model that predicted, with the names of its classes.
        rules: The rules of its posterior.
        predictive: What it says of each row.

    Returns:
        `answer`, then `confidence` and `set` of classes or `low` and `high` of a number,
        `abstain` and `strange`, as far as there are rules for them.
    """
    names = task.note.classes or ()
    chances = None
    if isinstance(predictive, GaussianPredictive):
        columns = _list_numbers(task, rules, predictive)
    else:
        assert isinstance(predictive, ClassPredictive)
        columns = _list_classes(names, rules, predictive)
        chances = predictive.known_log_probs.exp()
    if rules.abstain is not None:
        columns["abstain"] = (~rules.abstain.apply(predictive)).tolist()
    if rules.strange is not None:
        columns["strange"] = rules.strange.apply(predictive).tolist()
    return Answers(columns, task.note.classes, chances)


def _list_classes(
    names: tuple[str, ...], rules: Rules, predictive: ClassPredictive
) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        "answer": [names[number] for number in predictive.predicted.tolist()],
        "confidence": predictive.confidence.tolist(),
    }
    if rules.sets is not None:
        columns["set"] = [
            tuple(name for name, is_in in zip(names, row, strict=True) if is_in)
            for row in rules.sets.apply(predictive).tolist()
        ]
    return columns


def _list_numbers(
    task: TaskModel, rules: Rules, predictive: GaussianPredictive
) -> dict[str, list[Any]]:
    if rules.intervals is None:
        low, high = predictive.central_interval()
    else:
        low, high = rules.intervals.apply(predictive)
    # (B, 1) each, in the model's unit.
    ends = {"answer": predictive.mean, "low": low, "high": high}
    return {name: task.unscale(values)[:, 0].tolist() for name, values in ends.items()}


def _show(value: Any) -> str:
    """Write a value for a table that people read; all else has every digit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        value = "|".join(value)
    return f"{value:.4g}" if isinstance(value, float) else shorten(str(value), _CELL)
