"""Figures of many records: means with intervals, and curves of their means."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes

from smidgen.report import fields
from smidgen.report.drawing.axes import draw_markers, place_axes, set_rows
from smidgen.report.drawing.palette import SOFT, Style
from smidgen.report.drawing.svg import drawing, inline, sheet
from smidgen.report.fields import MAP, TEMPERATURE
from smidgen.report.formats import (
    format_signed,
    shorten_text,
)
from smidgen.report.many_records.aggregate import (
    FEWEST,
    RecordTable,
    SeedMean,
    average_seeds,
)
from smidgen.report.names import METHODS
from smidgen.report.one_record.figures import filled_bins
from smidgen.report.ramp.figures import (
    Line,
    collect_lines,
    draw_score_lines,
    group_levels,
    score_limits,
    size_limits,
)

_WIDTH, _NAMES, _ROW, _LINE = 384.0, 168.0, 17.0, 11.0
_LONGEST, _LONGEST_END = 30, 14
_FAR_OUT = 1.0
_SCORES = {"nll": "NLL", "ece": "ECE"}


def draw_intervals(
    gaps: Mapping[str, SeedMean],
    labels: Mapping[str, str],
    styles: Mapping[str, Style],
    *,
    aside: Collection[str] = (),
    xlabel: str,
    name: str,
) -> str:
    """Draw differences to a baseline with their intervals, a line for each method."""
    low, high = _limits(gaps, aside)
    names = {method: _lines(labels[method]) for method in gaps}
    # Names on two lines tell methods apart whose names begin alike.
    height = len(gaps) * (_ROW + _LINE * (max(map(len, names.values())) - 1))
    with drawing():
        figure = sheet(_WIDTH, height + 46)
        across = _WIDTH - _NAMES - 16
        axes = place_axes(figure, left=_NAMES, top=4, width=across, height=height)
        room = 0.05 * (high - low)
        set_rows(axes, len(gaps), (low - room, high + room), 0.0, 4)
        for row, (method, found) in enumerate(gaps.items()):
            style, y = styles[method], row + 0.5
            place = min(max(found.value, low), high)
            if place == found.value:
                axes.hlines(y, *_ends(found), style.colour, linewidth=1.6)
                marker = style.marker
            else:
                _number_at_edge(axes, found.value, place, y)
                marker = ">" if place == high else "<"
            draw_markers(axes, [place], [y], style, marker=marker)
            for i, line in enumerate(names[method]):
                down = y / len(gaps) + (i - (len(names[method]) - 1) / 2) * _LINE / height
                axes.text(
                    -6 / across, 1 - down, line,
                    transform=axes.transAxes, ha="right", va="center",
                )  # fmt: skip
        axes.set_xlabel(xlabel)
        return inline(figure, name, f"{xlabel} of each method")


def _lines(label: str) -> list[str]:
    """Break a long name, into two lines at most."""
    return textwrap.wrap(label, _LONGEST, max_lines=2, placeholder="…") or [""]


def _limits(gaps: Mapping[str, SeedMean], aside: Collection[str]) -> tuple[float, float]:
    """Ends of the axis: of all methods but those aside that lie far from the others."""
    near = [each for method, each in gaps.items() if method not in aside]
    ends = [0.0, *(x for each in near for x in _ends(each))]
    low, high = min(ends), max(ends)
    reach = _FAR_OUT * (high - low)
    for method in aside:
        found = _ends(gaps[method]) if method in gaps else (0.0, 0.0)
        if not near or low - reach <= found[0] and found[1] <= high + reach:
            low, high = min(low, found[0]), max(high, found[1])
    return (low, high) if high > low else (low - 0.05, high + 0.05)


def _number_at_edge(axes: Axes, value: float, place: float, y: float) -> None:
    """Write a difference that lies beyond the axis beside its arrow."""
    inward = -1 if value > place else 1
    axes.annotate(
        format_signed(value), (place, y), (8 * inward, 0),
        textcoords="offset points", va="center", color=SOFT,
        ha="right" if inward < 0 else "left",
    )  # fmt: skip


def _ends(found: SeedMean) -> tuple[float, float]:
    """Ends of an interval; one standard error to either side where numbers are few."""
    if found.count < FEWEST and found.error is not None:
        return found.value - found.error, found.value + found.error
    low = found.value if found.low is None else found.low
    high = found.value if found.high is None else found.high
    return low, high


def join_ramps(ramps: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Join the validation curves of several seeds: each is a repeat of its points."""
    paired = [_less_temperature(ramp) for ramp in ramps if ramp.get(TEMPERATURE)]
    if not paired:
        return None
    schemes = dict.fromkeys(each["scheme"] for ramp in paired for each in ramp["points"])
    return {
        "points": [each for scheme in schemes for each in _aligned(paired, scheme)],
        "chosen": {},
        **{
            name: {score: fmean(ramp[name][score] for ramp in paired) for score in _SCORES}
            for name in (MAP, TEMPERATURE)
        },
    }


def _less_temperature(ramp: Mapping[str, Any]) -> dict[str, Any]:
    def less(entry: Mapping[str, Any]) -> dict[str, Any]:
        gaps = {score: entry[score] - ramp[TEMPERATURE][score] for score in _SCORES}
        return {**entry, **gaps}

    points = [less(point) for point in ramp["points"]]
    return {"points": points, **{name: less(ramp[name]) for name in (MAP, TEMPERATURE)}}


def _aligned(ramps: Sequence[Mapping[str, Any]], scheme: str) -> list[Mapping[str, Any]]:
    """The points of a scheme, every seed at every size, so that means compare."""
    seeds: list[dict[float, list[Mapping[str, Any]]]] = []
    for ramp in ramps:
        levels = group_levels(ramp["points"], scheme)
        if levels:
            seeds.append(levels)
    # As many sizes are the same sizes: if not in layers or floats, as shares of the weights.
    if len({len(own) for own in seeds}) == 1:
        return [
            {**point, "level": place}
            for own in seeds
            for place, level in enumerate(sorted(own))
            for point in own[level]
        ]
    return [
        {**point, "level": wanted}
        # A budget that a seed lacks bought it nothing new: it has its next smaller one.
        for own in seeds
        for wanted in sorted({level for each in seeds for level in each})
        for point in own[max((e for e in own if e <= wanted), default=min(own))]
    ]


def draw_ramps(
    ramp: Mapping[str, Any], styles: Mapping[str, Style], name: str
) -> list[str]:
    """Draw NLL and ECE on validation data against floats, less those of temperature."""
    found = []
    for score, text in _SCORES.items():
        drawn = [_marked(line) for line in collect_lines(ramp, score)]
        levels = {name: ramp[name][score] for name in (MAP, TEMPERATURE)}
        axis = (size_limits(drawn), score_limits(drawn, levels))
        found.append(
            draw_score_lines(
                drawn,
                levels,
                styles,
                axis,
                ylabel=f"validation {text} − temperature",
                name=f"{name}-{score}",
            )
        )
    return found


def _marked(line: Line) -> Line:
    """Mark the only point of a scheme; of more the line itself is drawn."""
    only = (line.sizes[0], line.value[0]) if len(line.sizes) == 1 else None
    return replace(line, chosen=only)


def draw_levels(
    across: RecordTable, data: str, styles: Mapping[str, Style], baseline: str, name: str
) -> dict[str, str]:
    """Draw what ever more stochastic weights change in test NLL, within each seed."""
    families: dict[str, list[Line]] = {}
    for scheme, own in _level_gaps(across, data, baseline).items():
        found = {
            percent: average_seeds(each, across.test_to_train[data])
            for percent, each in sorted(own.items())
        }
        ends = [_ends(each) for each in found.values()]
        line = Line(
            scheme,
            _end_name(scheme, across.labels.get(scheme, scheme)),
            tuple(found),
            tuple(each.value for each in found.values()),
            tuple(low for low, _ in ends),
            tuple(high for _, high in ends),
        )
        family, _, _ = across.labels.get(scheme, scheme).partition(", ")
        families.setdefault(family, []).append(_marked(line))
    levels = {baseline: 0.0}
    return {
        family: draw_score_lines(
            drawn,
            levels,
            styles,
            (size_limits(drawn), _seen_limits(drawn, levels)),
            ylabel=f"test NLL less that of {across.labels.get(baseline, baseline)}",
            xlabel="percent of weights stochastic",
            name=f"{name}-{place}",
        )
        for place, (family, drawn) in enumerate(families.items())
        # One size of everything is a row of the table and no curve.
        if any(len(line.sizes) > 1 for line in drawn)
    }


def _seen_limits(drawn: Sequence[Line], levels: Mapping[str, float]) -> tuple[float, float]:
    """Ends of an axis for the means: bands may leave it where seeds disagree."""
    low, high = score_limits([_narrow(line) for line in drawn], levels)
    ends = score_limits(drawn, levels)
    room = high - low
    return max(ends[0], low - room), min(ends[1], high + room)


def _level_gaps(
    across: RecordTable, data: str, baseline: str
) -> dict[str, dict[float, list[float]]]:
    """Test NLL less the baseline's of the same seed, by scheme and percentage."""
    found: dict[str, dict[float, list[float]]] = {}
    for record in across.records_of(data):
        pair = (data, record.seed or 0)
        level = across.value(pair, baseline, "nll")
        if level is None:
            continue
        for each in fields.read_part(record, "levels") or ():
            if each["level"] > 0:
                own = found.setdefault(each["scheme"], {})
                gap = each["scores"]["nll"]["value"] - level
                own.setdefault(each["level"], []).append(gap)
    return found


def _narrow(line: Line) -> Line:
    return replace(line, low=line.value, high=line.value)


def _end_name(scheme: str, label: str) -> str:
    """Name a line's end: the short name of the choice, or the label without its family."""
    known = METHODS.get(f"uci:{scheme.partition('-')[2]}")
    if known is not None and known.short:
        return known.short
    return shorten_text(label.partition(", ")[2] or label, _LONGEST_END)


def pool_bins(curves: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """Average reliability bins over seeds, bin by bin; they hold equal shares."""
    bins = list(zip(*(filled_bins(each) for each in curves), strict=False))
    return {
        "confidence": [fmean(row[0] for row in each) for each in bins],
        "accuracy": [fmean(row[1] for row in each) for each in bins],
        "count": [sum(row[2] for row in each) for each in bins],
    }
