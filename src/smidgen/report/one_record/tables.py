"""Tables: plain rows for the page and the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from smidgen.report import fields
from smidgen.report.fields import Estimate, MethodFields
from smidgen.report.formats import (
    THIN,
    format_count,
    format_fraction,
    format_nll,
    format_percent,
    format_rate,
    format_ratio,
    format_share,
    format_significant,
)
from smidgen.report.wording import name_side
from smidgen.runtime.record import Record


@dataclass(frozen=True)
class Column:
    """One score of a table: its name, its heading and which way is better."""

    score: str
    heading: str
    better: str
    format: Callable[[float], str]

    @property
    def plain_heading(self) -> str:
        """The heading for a terminal."""
        has_floor = self.score in fields.CALIBRATION
        return f"{self.heading} (by chance)" if has_floor else self.heading


@dataclass(frozen=True)
class TableCell:
    """One number of a table."""

    score: str
    text: str  # a dash where it was not measured
    value: float | None = None
    bounds: tuple[TableCell, ...] = ()  # the ends of its interval, or its standard error
    best: bool = False
    count: TableCell | None = None  # a count that is shown beneath it
    floor: TableCell | None = None  # what chance alone gives
    side: str = ""  # of a baseline's number, by the paired difference

    @property
    def plain_text(self) -> str:
        """The number for a terminal, with what chance alone gives in brackets."""
        return self.text if self.floor is None else f"{self.text} ({self.floor.text})"


@dataclass(frozen=True)
class Row:
    """One method of a table."""

    name: str
    label: str
    cells: tuple[TableCell, ...]
    settings: tuple[TableCell, ...] = ()  # those chosen for it on validation data
    at_edge: bool = False  # whether its precision is the first or last of those tried
    size: str = ""  # of its chosen point, in a word or two


NLL = Column("nll", "NLL", "↓", format_nll)
FRACTION = Column("fraction", "Weights stochastic", "", format_fraction)
FLOATS = Column("floats", "Floats stored", "↓", format_count)
BODY_PRECISION = Column("body_precision", "τ of the body", "", format_significant)
"""The precision of layers without curvature beside others that have one."""
RMSE = Column("rmse", "RMSE", "↓", format_nll)
SCORES = (
    Column("accuracy", "Accuracy", "↑", format_percent),
    NLL,
    RMSE,
    Column("coverage", f"In 95{THIN}% intervals", "", format_percent),
    Column("ece_equal_mass", "ECE, equal mass", "↓", format_rate),
    Column("ece_equal_width", "ECE, equal width", "↓", format_rate),
    Column("ece", "ECE", "↓", format_rate),
    Column("brier", "Brier", "↓", format_nll),
)
AUTOMATION = Column("automation", "Automated", "↑", format_share)
"""The share that could be answered at the first named error, for tables of one line."""
COLUMNS = (
    AUTOMATION,
    *SCORES,
    FLOATS,
    Column("relative_seconds", "Time / forward", "↓", format_ratio),
)
RAMP_COLUMNS = (
    FRACTION,
    FLOATS,
    Column("validation_nll", "NLL, validation", "↓", format_nll),
    *SCORES,
)
SETTINGS = (
    Column("precision", "τ", "", format_significant),
    BODY_PRECISION,
    Column("temperature", "T", "", format_significant),
    Column("noise", "noise", "", format_significant),
)


def list_columns(record: Record) -> tuple[Column, ...]:
    """List the columns of the main table, those that a method has a number for."""
    columns = RAMP_COLUMNS if fields.read_part(record, "ramp") else COLUMNS
    methods = fields.list_methods(record)
    shown = (c for c in columns if any(_read(m, c) is not None for m in methods))
    max_error = fields.read_max_error(record)
    if max_error is None:
        return tuple(shown)
    heading = f"Automated at best, at {format_share(1 - max_error)} accuracy"
    return tuple(replace(c, heading=heading) if c is AUTOMATION else c for c in shown)


def score_rows(record: Record, columns: Sequence[Column] | None = None) -> list[Row]:
    """Make the main table, a row for each method.

    Args:
        record: The record.
        columns: What to show; by default all of `list_columns`.

    Returns:
        The rows. The lowest NLL is marked best only if its paired difference to
        temperature scaling lies wholly below zero.
    """
    best = find_best(record)
    columns = list_columns(record) if columns is None else columns
    return [_make_row(method, best, columns) for method in fields.list_shown(record)]


def find_best(record: Record) -> str | None:
    """Name the method of the lowest NLL, if it clearly beats temperature scaling."""
    losses = {
        method["name"]: loss["value"]
        for method in fields.list_methods(record)
        if (loss := fields.read_score(method, "nll"))
    }
    if not losses:
        return None
    lowest = min(losses, key=losses.__getitem__)
    gap = fields.read_difference(record, lowest, fields.TEMPERATURE, "nll")
    return lowest if gap and gap["high"] < 0 else None


def describe_level(scheme: str, level: float) -> str:
    """Say the size of a point in the terms of its scheme."""
    if scheme in ("sparse-kfac", "isotropic"):
        return f"{level:g}{THIN}% of rows and columns"
    if scheme == "best-budget":
        return f"at most {format_count(level)} floats"
    if scheme == "magnitude":
        return f"{100 * level:g}{THIN}% of all weights"
    return f"{format_count(level)} layer{'' if level == 1 else 's'}"


def detection_rows(record: Record) -> list[Row]:
    """Make the table of AUROCs, a row for each method and a cell for each shifted set."""
    detection = fields.collect_part(record, "detection")
    names = dict.fromkeys(name for sets in detection.values() for name in sets)
    columns = [Column(f"detection.{name}", name, "↑", format_rate) for name in names]
    return [
        Row(method, label, tuple(make_cell(c, sets.get(c.heading)) for c in columns))
        for method, label, sets in _list_parts(record, "detection")
    ]


def disagreement_rows(record: Record) -> list[Row]:
    """Make the table of how uncertainty follows human disagreement."""
    column = Column("disagreement", "Human disagreement", "↑", format_rate)
    return [
        Row(name, label, (make_cell(column, estimate),))
        for name, label, estimate in _list_parts(record, "disagreement")
    ]


def area_rows(record: Record) -> list[Row]:
    """Make the table of areas under the risk–coverage curves."""
    column = Column("risk_coverage.area", "Area", "↓", format_nll)
    return [
        Row(name, label, (_judge_area(record, name, make_cell(column, curve.get("area"))),))
        for name, label, curve in _list_parts(record, "risk_coverage")
    ]


def _judge_area(record: Record, method: str, cell: TableCell) -> TableCell:
    """Say on which side of temperature scaling an area lies, if that was measured."""
    gap = fields.read_difference(record, method, fields.TEMPERATURE, "risk_coverage")
    return replace(cell, side=name_side(gap["low"], gap["high"])) if gap else cell


def _list_parts(record: Record, part: str) -> list[tuple[str, str, Any]]:
    return [
        (m["name"], fields.read_label(m), m[part])
        for m in fields.list_shown(record)
        if m.get(part)
    ]


def _read(method: MethodFields, column: Column) -> Estimate | float | None:
    """Read what a method has for a column: a score, or a cost beside the scores."""
    if column in SCORES:
        return fields.read_score(method, column.score)
    if column.score == AUTOMATION.score:
        return next(iter(method.get("automation") or ()), None)
    cost: float | None = method.get(column.score)
    return cost


def _make_row(method: MethodFields, best: str | None, columns: Sequence[Column]) -> Row:
    name = method["name"]
    cells = [
        add_floor(
            make_cell(column, _read(method, column), best=column is NLL and name == best),
            column,
            fields.read_floor(method, column.score),
        )
        for column in columns
    ]
    settings = [
        make_cell(column, method[column.score])
        for column in SETTINGS
        if method.get(column.score) is not None
    ]
    if method.get("precision_range"):
        ends = " to ".join(format_significant(end) for end in method["precision_range"])
        settings.insert(0, TableCell("precision", ends))
    level, size = method.get("level"), ""
    if level is not None:
        text = describe_level(name, level)
        percent = f"{level:g}{THIN}%"
        short = {"sparse-kfac": percent, "isotropic": percent, "best-budget": "budget"}
        size = short.get(name, text)
        settings.insert(0, TableCell("level", text, level))
    if method.get("weights") is not None:
        count = method["weights"]
        weights = TableCell("weights", format_count(count), count)
        cells = [replace(c, count=weights) if c.score == "fraction" else c for c in cells]
    at_edge = bool(method.get("precision_at_edge"))
    label = fields.read_label(method)
    return Row(name, label, tuple(cells), tuple(settings), at_edge, size)


def make_cell(
    column: Column, measured: Estimate | float | None, *, best: bool = False
) -> TableCell:
    """Make a cell of a number, with its interval where it has one."""
    estimate: Estimate = measured if isinstance(measured, Mapping) else {}
    value = estimate.get("value") if isinstance(measured, Mapping) else measured
    if value is None:
        return TableCell(column.score, "–")
    bounds = []
    for end in ("low", "high") if fields.has_bounds(estimate) else ():
        # The value already shows the unit.
        text = column.format(estimate[end]).removesuffix(f"{THIN}%")
        bounds.append(TableCell(f"{column.score}.{end}", text, estimate[end]))
    return TableCell(column.score, column.format(value), value, tuple(bounds), best)


def add_floor(cell: TableCell, column: Column, floor: float | None) -> TableCell:
    """Put what chance alone gives beside a calibration error."""
    if column.score not in fields.CALIBRATION or cell.value is None:
        return cell
    beside = make_cell(replace(column, score=f"{column.score}.floor"), floor)
    return replace(cell, floor=beside)
