"""Tables: plain rows for the page and the terminal, and every number's format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor, log10
from typing import Any

from smidgen.report import fields as reading
from smidgen.runtime.record import Record

_MINUS = "\u2212"
_THIN = "\u202f"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def percent(value: float) -> str:
    """Format a share as a percentage: `83.1 %`."""
    return f"{_decimals(100 * value, 1)}{_THIN}%"


def nll(value: float) -> str:
    """Format a negative log likelihood, or a Brier score: `0.3821`."""
    return _decimals(value, 4)


def rate(value: float) -> str:
    """Format a calibration error, an AUROC or a correlation: `0.047`."""
    return _decimals(value, 3)


def signed(value: float, places: int = 4) -> str:
    """Format a difference with its sign: `+0.0012`."""
    text = _decimals(value, places)
    return text if value <= 0 else f"+{text}"


def count(value: float) -> str:
    """Format a count with thousands separators: `1,234,567`."""
    return f"{round(value):,}".replace("-", _MINUS)


def share(value: float) -> str:
    """Format a share of any size as a percentage: `0.0119 %`, `100 %`."""
    return f"{significant(100 * value)}{_THIN}%"


def seconds(value: float) -> str:
    """Format a time: `0.3 s`, `1,234 s`."""
    return f"{value:,.{1 if value < 100 else 0}f}{_THIN}s"


def times(value: float) -> str:
    """Format a ratio of times: `1.08×`."""
    return f"{value:.2f}×"


def significant(value: float) -> str:
    """Format a number of unknown size to three digits: `12.3`, `4.56×10⁻⁵`."""
    if value == 0:
        return "0"
    exponent = floor(log10(abs(value)))
    if exponent < -3 or exponent > 5:
        power = str(exponent).translate(_SUPERSCRIPT)
        return f"{_decimals(value / 10.0**exponent, 2)}×10{power}"
    places = max(0, 2 - exponent)
    return f"{value:,.{places}f}".replace("-", _MINUS)


def _decimals(value: float, places: int) -> str:
    return f"{value:.{places}f}".replace("-", _MINUS)


@dataclass(frozen=True)
class Column:
    """One score of a table: its name, its heading and which way is better."""

    score: str
    heading: str
    better: str
    form: Callable[[float], str]


@dataclass(frozen=True)
class Bound:
    """One end of an interval, or a standard error."""

    score: str
    value: float
    text: str


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Args:
        score: What it measures.
        text: As it is shown; a dash where it was not measured.
        value: As it was recorded, or None.
        bounds: The ends of its 95 % interval, its standard error alone, or nothing.
        best: Whether it is marked as the best of its column.
        count: A count that belongs to it, or nothing.
    """

    score: str
    text: str
    value: float | None = None
    bounds: tuple[Bound, ...] = ()
    best: bool = False
    count: Bound | None = None


@dataclass(frozen=True)
class Row:
    """One method of a table; `settings` are what was tuned for it.

    `size` is that of a chosen point, in a word or two;
    `at_edge` says that the chosen precision is the first or last of its grid.
    """

    name: str
    label: str
    cells: tuple[Cell, ...]
    settings: tuple[Cell, ...] = ()
    at_edge: bool = False
    size: str = ""


SCORES = (
    Column("accuracy", "Accuracy", "↑", percent),
    Column("nll", "NLL", "↓", nll),
    Column("ece_equal_mass", "ECE, equal mass", "↓", rate),
    Column("ece_equal_width", "ECE, equal width", "↓", rate),
    Column("brier", "Brier", "↓", nll),
)
COSTS = (
    Column("floats", "Floats stored", "↓", count),
    Column("relative_seconds", "Time / forward", "↓", times),
)
COLUMNS = SCORES + COSTS
RAMP_COLUMNS = (
    Column("fraction", "Weights stochastic", "", share),
    Column("floats", "Floats stored", "↓", count),
    Column("validation_nll", "NLL, validation", "↓", nll),
    *SCORES,
)
_SETTINGS = (
    Column("precision", "τ", "", significant),
    Column("temperature", "T", "", significant),
)


def score_rows(record: Record) -> list[Row]:
    """Make the main table, a row per method in the order of `columns_of`.

    Args:
        record: The record.

    Returns:
        The rows. The lowest NLL is marked best only if its paired difference to
        temperature scaling lies wholly below zero.
    """
    best = best_method(record)
    columns = columns_of(record)
    return [_row(method, best, columns) for method in reading.methods(record)]


def columns_of(record: Record) -> tuple[Column, ...]:
    """List the columns of the main table: a ramping study shows sizes, and no times."""
    return RAMP_COLUMNS if reading.ramp(record) else COLUMNS


def level_text(scheme: str, level: float) -> str:
    """Say the size of a point in its scheme's own terms."""
    if scheme == "sparse-kfac":
        return f"{level:g}{_THIN}% of rows and columns"
    if scheme == "best-budget":
        return f"at most {count(level)} floats"
    if scheme == "magnitude":
        return f"{100 * level:g}{_THIN}% of all weights"
    return f"{count(level)} layer{'' if level == 1 else 's'}"


def _short_level(scheme: str, level: float) -> str:
    if scheme == "sparse-kfac":
        return f"{level:g}{_THIN}%"
    return "budget" if scheme == "best-budget" else level_text(scheme, level)


def best_method(record: Record) -> str | None:
    """Name the method of the lowest NLL, if it clearly beats temperature scaling.

    Args:
        record: The record.

    Returns:
        Its name, or None where the lead may be chance.
    """
    scored = {
        method["name"]: found["value"]
        for method in reading.methods(record)
        if (found := reading.score(method, "nll"))
    }
    if not scored:
        return None
    lowest = min(scored, key=scored.__getitem__)
    gap = reading.difference(record, lowest, reading.TEMPERATURE, "nll")
    return lowest if gap and gap["high"] < 0 else None


def detection_rows(record: Record) -> list[Row]:
    """Make the table of AUROCs, a row per method and a cell per shifted set."""
    sets = reading.shifted_sets(record)
    return [
        Row(
            method["name"],
            reading.label(method),
            tuple(
                _cell(Column(f"detection.{name}", name, "↑", rate), found.get(name))
                for name in sets
            ),
        )
        for method in reading.methods(record)
        if (found := method.get("detection"))
    ]


def disagreement_rows(record: Record) -> list[Row]:
    """Make the table of how uncertainty follows human disagreement."""
    column = Column("disagreement", "Human disagreement", "↑", rate)
    return [
        Row(m["name"], reading.label(m), (_cell(column, m["disagreement"]),))
        for m in reading.methods(record)
        if m.get("disagreement")
    ]


def area_rows(record: Record) -> list[Row]:
    """Make the table of areas under the risk–coverage curves."""
    column = Column("risk_coverage.area", "Area", "↓", nll)
    return [
        Row(
            m["name"],
            reading.label(m),
            (_cell(column, m["risk_coverage"].get("area")),),
        )
        for m in reading.methods(record)
        if m.get("risk_coverage")
    ]


def _row(method: Mapping[str, Any], best: str | None, columns: Sequence[Column]) -> Row:
    name = method["name"]
    cells = [
        _cell(
            column,
            reading.score(method, column.score)
            if column in SCORES
            else method.get(column.score),
            best=column.score == "nll" and name == best,
        )
        for column in columns
    ]
    settings = [
        _cell(column, method[column.score])
        for column in _SETTINGS
        if method.get(column.score) is not None
    ]
    if method.get("precision_range"):
        ends = " to ".join(significant(end) for end in method["precision_range"])
        settings.insert(0, Cell("precision", ends))
    level, size = method.get("level"), ""
    if level is not None:
        size = _short_level(name, level)
        settings.insert(0, Cell("level", level_text(name, level), level))
    if method.get("weights") is not None:
        held = Bound("weights", method["weights"], count(method["weights"]))
        cells = [replace(c, count=held) if c.score == "fraction" else c for c in cells]
    return Row(
        method["name"],
        reading.label(method),
        tuple(cells),
        tuple(settings),
        at_edge=bool(method.get("precision_at_edge")),
        size=size,
    )


def _cell(
    column: Column, found: reading.Interval | float | None, *, best: bool = False
) -> Cell:
    interval: reading.Interval = found if isinstance(found, Mapping) else {}
    value = interval.get("value") if isinstance(found, Mapping) else found
    if value is None:
        return Cell(column.score, "–")
    bounds: tuple[Bound, ...] = ()
    if reading.bounded(interval):
        bounds = tuple(
            Bound(f"{column.score}.{end}", interval[end], _bare(column, interval[end]))
            for end in ("low", "high")
        )
    return Cell(column.score, column.form(value), value, bounds, best)


def plain_cell(column: Column, value: float | None) -> Cell:
    """Make a cell of a number without an interval."""
    return _cell(column, value)


def _bare(column: Column, value: float) -> str:
    """Format the end of an interval; its value already shows the unit."""
    return column.form(value).removesuffix(f"{_THIN}%")
