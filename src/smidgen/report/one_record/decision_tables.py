"""Tables of what to do with the answers: how many to automate, and which to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from smidgen.report import fields
from smidgen.report.formats import (
    THIN,
    format_count,
    format_percent,
    format_rate,
    format_share,
    format_significant,
    shorten_text,
)
from smidgen.report.one_record.tables import Column, Row, TableCell, make_cell
from smidgen.report.one_record.verdict import find_side
from smidgen.runtime.record import Record

LONGEST_SHOWN = 240
_LONGEST_NAME = 60
SCORE_NAMES = {
    "confidence": "confidence",
    "entropy": "entropy",
    "mutual_information": "mutual information",
    "logit_variance": "variance of the logits",
    "variance": "variance of the function",
    "energy": "energy of the logits",
}
"""What each score of uncertainty is called; an unknown one is called by its key."""


_SAME_RULES = (
    Column("same_rules.abstain.answered", "Answered", "↑", format_percent),
    Column("same_rules.abstain.error", "Wrong among them", "", format_percent),
    Column("same_rules.sets.covered", "Sets with the truth", "", format_percent),
    Column("same_rules.sets.size", "Classes in a set", "↓", format_significant),
    Column("same_rules.intervals.covered", "Intervals with the truth", "", format_percent),
    Column("same_rules.intervals.width", "Mean width", "↓", format_significant),
)


@dataclass(frozen=True)
class Table:
    """A table with its columns."""

    columns: tuple[Column, ...]
    rows: list[Row]


@dataclass(frozen=True)
class ExampleRow:
    """One test row for a person to look at, all of it text."""

    number: str
    text: str
    label: str
    answer: str
    score: str


def tabulate_automation(record: Record) -> Table | None:
    """Make the table of the shares that may be automated, a column for each named error."""
    methods = [m for m in fields.list_shown(record) if m.get("automation")]
    if not methods:
        return None
    errors = dict.fromkeys(e["max_error"] for m in methods for e in m["automation"])
    shares = [
        Column(
            f"automation.{error:g}",
            f"At {format_share(1 - error)} accuracy",
            "↑",
            format_percent,
        )
        for error in errors
    ]
    least = Column("automation.threshold", "Confidence needed", "", _format_threshold)
    first = next(iter(errors))
    rows = []
    for method in methods:
        cells = [
            make_cell(column, fields.read_automation(method, error))
            for column, error in zip(shares, errors, strict=True)
        ]
        chosen = fields.read_automation(method, first) or {}
        cells.append(make_cell(least, chosen.get("threshold")))
        rows.append(Row(method["name"], fields.read_label(method), tuple(cells)))
    return Table((*shares, least), rows)


def tabulate_classes(record: Record) -> Table | None:
    """Make the table of the classes: how often each is right, and how much is automated."""
    primary = fields.find_primary(record)
    contenders = [m for m in fields.list_compared(record) if m.get("by_class")]
    if primary is None or not primary.get("by_class"):
        return None
    columns = [
        Column("rows", "Test rows", "", format_count),
        Column("accuracy", "Accuracy", "↑", format_percent),
        Column("confidence", "Mean confidence", "", format_percent),
    ]
    shares = [
        Column("automation", f"Automated, {fields.read_label(method)}", "↑", format_percent)
        for method in contenders
    ]
    rows = []
    for place, entry in enumerate(primary["by_class"]):
        cells = [
            make_cell(replace(c, score=f"class.{place}.{c.score}"), entry[c.score])
            for c in columns
        ]
        for column, method in zip(shares, contenders, strict=True):
            score = f"class.{place}.automation.{method['name']}"
            value = method["by_class"][place]["automation"]
            cells.append(make_cell(replace(column, score=score), value))
        name = shorten_text(str(entry["name"]), _LONGEST_NAME)
        rows.append(Row(primary["name"], name, tuple(cells)))
    return Table((*columns, *shares), rows)


def tabulate_intervals(record: Record) -> Table | None:
    """Make the table of a regression's intervals: what they hold and how wide they are."""
    methods = [m for m in fields.list_shown(record) if m.get("intervals")]
    if not methods:
        return None
    # The widest come first: they are what people give.
    levels = sorted((e["coverage"] for e in methods[0]["intervals"]), reverse=True)
    columns = [
        Column(
            f"intervals.{level:g}",
            f"In {format_share(level)} intervals",
            "",
            format_percent,
        )
        for level in levels
    ]
    rows = []
    for method in methods:
        cells = []
        entries = {entry["coverage"]: entry for entry in method["intervals"]}
        for column, entry in zip(columns, map(entries.__getitem__, levels), strict=True):
            width = TableCell(
                f"{column.score}.width",
                f"width {format_significant(entry['width']['value'])}",
                entry["width"]["value"],
            )
            cells.append(replace(make_cell(column, entry["covered"]), count=width))
        rows.append(Row(method["name"], fields.read_label(method), tuple(cells)))
    return Table(tuple(columns), rows)


def tabulate_same_rules(record: Record) -> Table | None:
    """Make the table of what rules of the same kind do with each method."""
    methods = [m for m in fields.list_compared(record) if m.get("same_rules")]
    known = {rule for method in methods for rule in method["same_rules"]}
    columns = [c for c in _SAME_RULES if c.score.split(".")[1] in known]
    if len(methods) < 2 or not columns:
        return None
    rows = []
    for method in methods:
        cells = []
        for column in columns:
            _, rule, measure = column.score.split(".")
            estimate = (method["same_rules"].get(rule) or {}).get(measure)
            cells.append(make_cell(column, estimate))
        rows.append(Row(method["name"], fields.read_label(method), tuple(cells)))
    return Table(tuple(columns), rows)


def tabulate_scores(record: Record) -> Table | None:
    """Make the table of what each score of uncertainty finds: errors, and shifted data."""
    methods = [
        m
        for m in fields.list_compared(record)
        if m.get("error_detection") or m.get("score_detection")
    ]
    shifts = dict.fromkeys(name for m in methods for name in m.get("score_detection") or ())
    heads = {"error_detection": "Finds errors"} if _has_errors(methods) else {}
    columns = [Column(key, text, "↑", format_rate) for key, text in heads.items()]
    columns += [
        Column(f"detection.{name}", f"Finds {name}", "↑", format_rate) for name in shifts
    ]
    if not columns:
        return None
    rows = []
    for method in methods:
        found = {
            **{key: method.get(key) or {} for key in heads},
            **{
                f"detection.{n}": (method.get("score_detection") or {}).get(n)
                for n in shifts
            },
        }
        scores = dict.fromkeys(score for part in found.values() for score in part or ())
        for score in scores:
            cells = tuple(
                _make_judged_cell(
                    record, method["name"], column, score, found[column.score]
                )
                for column in columns
            )
            label = f"{fields.read_label(method)}, {SCORE_NAMES.get(score, score)}"
            rows.append(Row(method["name"], label, cells))
    return Table(tuple(columns), rows)


def _has_errors(methods: Sequence[fields.MethodFields]) -> bool:
    return any(method.get("error_detection") for method in methods)


def _make_judged_cell(
    record: Record, method: str, column: Column, score: str, part: Mapping[str, Any] | None
) -> TableCell:
    """Make a cell that says on which side of the plain model's own score it lies."""
    name = f"{column.score}.{score}"
    cell = make_cell(replace(column, score=name), (part or {}).get(score))
    return replace(cell, side=find_side(record, method, fields.MAP, name) or "")


def list_examples(record: Record, part: str) -> list[ExampleRow]:
    """List test rows for a person to look at, the first ones first."""
    entries = (fields.read_part(record, "decisions") or {}).get(part) or ()
    return [
        ExampleRow(
            number=format_count(entry["row"]),
            text=shorten_text(str(entry.get("text") or ""), LONGEST_SHOWN),
            label=_format_answer(entry["label"]),
            answer=_format_answer(entry["answer"]),
            score=_format_score(entry, part),
        )
        for entry in entries
    ]


def _format_threshold(value: float) -> str:
    """Write a confidence that is not quite 1 as such."""
    text = format_rate(value)
    return f"> {format_rate(0.999)}" if value < 1 and text == format_rate(1.0) else text


def _format_answer(value: Any) -> str:
    """Write a class name, a number or the names of several labels."""
    if isinstance(value, list | tuple):
        return ", ".join(map(_format_answer, value)) or "none"
    if isinstance(value, float):
        return format_significant(value)
    return shorten_text(str(value), _LONGEST_NAME)


def _format_score(entry: Mapping[str, Any], part: str) -> str:
    if part == "strangest":
        return format_significant(entry["score"])
    if entry.get("confidence") is not None:
        return format_percent(entry["confidence"])
    return f"±{THIN}{format_significant(entry['deviation'])}"
