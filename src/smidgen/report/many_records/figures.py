"""Figures of many records: means with intervals, and curves of their means."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from statistics import fmean
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes

from smidgen.report.drawing.axes import draw_markers, place_axes, set_rows
from smidgen.report.drawing.palette import SOFT, Styles
from smidgen.report.drawing.svg import drawing, inline, sheet
from smidgen.report.fields import MAP, TEMPERATURE, read_part
from smidgen.report.formats import format_signed, shorten_text
from smidgen.report.many_records.aggregate import (
    FEWEST,
    RecordTable,
    SeedMean,
    average_seeds,
)
from smidgen.report.names import METHODS
from smidgen.report.one_record.figures import filled_bins
from smidgen.report.ramp.figures import (
    RAMP_SCORES,
    SIZES,
    Limits,
    Line,
    collect_lines,
    draw_score_lines,
    group_levels,
    score_limits,
    size_limits,
)

_WIDTH, _NAMES, _ROW, _LINE = 384.0, 168.0, 17.0, 11.0
_LONGEST, _LONGEST_END = 30, 14
_Point = Mapping[str, Any]


def draw_intervals(
    gaps: Mapping[str, SeedMean],
    labels: Mapping[str, str],
    styles: Styles,
    *,
    aside: Collection[str] = (),
    xlabel: str,
    name: str,
) -> Markup:
    """Draw differences to a baseline and their intervals, a row for each method."""
    # Methods in `aside` that lie far from the others are only numbers at the edge.
    low, high = _find_limits(gaps, aside)
    # Two lines tell apart methods whose names begin alike.
    names = {
        method: textwrap.wrap(labels[method], _LONGEST, max_lines=2, placeholder="…")
        for method in gaps
    }
    height = len(gaps) * (_ROW + _LINE * (max(1, *map(len, names.values())) - 1))
    with drawing():
        figure = sheet(_WIDTH, height + 46)
        width = _WIDTH - _NAMES - 16
        axes = place_axes(figure, left=_NAMES, top=4, width=width, height=height)
        room = 0.05 * (high - low)
        set_rows(axes, len(gaps), (low - room, high + room), 0.0, 4)
        for row, (method, gap) in enumerate(gaps.items()):
            style, y = styles[method], row + 0.5
            x = min(max(gap.value, low), high)
            if x == gap.value:
                axes.hlines(y, *_find_ends(gap), style.colour, linewidth=1.6)
                marker = style.marker
            else:
                _write_at_edge(axes, gap.value, x, y)
                marker = ">" if x == high else "<"
            draw_markers(axes, [x], [y], style, marker=marker)
            for i, line in enumerate(names[method]):
                down = y / len(gaps) + (i - (len(names[method]) - 1) / 2) * _LINE / height
                axes.text(
                    -6 / width, 1 - down, line,
                    transform=axes.transAxes, ha="right", va="center",
                )  # fmt: skip
        axes.set_xlabel(xlabel)
        return inline(figure, name, f"{xlabel} of each method")


def _find_limits(gaps: Mapping[str, SeedMean], aside: Collection[str]) -> Limits:
    """Find the ends of an axis for all methods but those aside that lie far away."""
    near = [_find_ends(gap) for method, gap in gaps.items() if method not in aside]
    ends = [0.0, *chain.from_iterable(near)]
    low, high = min(ends), max(ends)
    reach = high - low
    for method in aside:
        first, last = _find_ends(gaps[method]) if method in gaps else (0.0, 0.0)
        if not near or low - reach <= first and last <= high + reach:
            low, high = min(low, first), max(high, last)
    return (low, high) if high > low else (low - 0.05, high + 0.05)


def _write_at_edge(axes: Axes, value: float, x: float, y: float) -> None:
    """Write a difference that lies beyond the axis beside its arrow."""
    inward = -1 if value > x else 1
    axes.annotate(
        format_signed(value), (x, y), (8 * inward, 0),
        textcoords="offset points", va="center", color=SOFT,
        ha="right" if inward < 0 else "left",
    )  # fmt: skip


def _find_ends(mean: SeedMean) -> Limits:
    """Find the ends of an interval, one standard error to each side if seeds are few."""
    if mean.count < FEWEST and mean.error is not None:
        return mean.value - mean.error, mean.value + mean.error
    low = mean.value if mean.low is None else mean.low
    high = mean.value if mean.high is None else mean.high
    return low, high


def join_ramps(ramps: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Join the validation curves of seeds, each less its temperature scaling, if any."""
    ramps = [_subtract_temperature(ramp) for ramp in ramps if ramp.get(TEMPERATURE)]
    if not ramps:
        return None
    schemes = dict.fromkeys(point["scheme"] for ramp in ramps for point in ramp["points"])
    return {
        "points": [point for scheme in schemes for point in _align_points(ramps, scheme)],
        "chosen": {},
        **{
            name: {
                score: fmean(ramp[name][score] for ramp in ramps) for score in RAMP_SCORES
            }
            for name in (MAP, TEMPERATURE)
        },
    }


def _subtract_temperature(ramp: Mapping[str, Any]) -> dict[str, Any]:
    def subtract(entry: _Point) -> dict[str, Any]:
        gaps = {score: entry[score] - ramp[TEMPERATURE][score] for score in RAMP_SCORES}
        return {**entry, **gaps}

    baselines = {name: subtract(ramp[name]) for name in (MAP, TEMPERATURE)}
    return {"points": [subtract(point) for point in ramp["points"]], **baselines}


def _align_points(ramps: Sequence[Mapping[str, Any]], scheme: str) -> list[_Point]:
    """List the points of a scheme, every seed at every size, so that means compare."""
    seeds = [levels for ramp in ramps if (levels := group_levels(ramp["points"], scheme))]
    # As many sizes are the same sizes: if not in layers or floats, as shares of the weights.
    if len({len(levels) for levels in seeds}) == 1:
        return [
            {**point, "level": index}
            for levels in seeds
            for index, level in enumerate(sorted(levels))
            for point in levels[level]
        ]
    return [
        {**point, "level": level}
        # A budget that a seed lacks bought it nothing new: it has its next smaller one.
        for levels in seeds
        for level in sorted(set(chain.from_iterable(seeds)))
        for point in levels[max((x for x in levels if x <= level), default=min(levels))]
    ]


def draw_ramps(
    ramp: Mapping[str, Any], styles: Styles, name: str, size: str = "floats"
) -> list[Markup]:
    """Draw NLL and ECE on validation data against a size, less those of temperature."""
    svgs = []
    for score, text in RAMP_SCORES.items():
        lines = [_mark_single(line) for line in collect_lines(ramp, score, size)]
        levels = {baseline: ramp[baseline][score] for baseline in (MAP, TEMPERATURE)}
        svg = draw_score_lines(
            lines,
            levels,
            styles,
            (size_limits(lines), score_limits(lines, levels)),
            ylabel=f"validation {text} − temperature",
            xlabel=SIZES[size],
            name=f"{name}-{score}",
        )
        svgs.append(svg)
    return svgs


def _mark_single(line: Line) -> Line:
    """Mark a scheme's point if it has only one; otherwise the line itself is drawn."""
    single = (line.sizes[0], line.value[0]) if len(line.sizes) == 1 else None
    return replace(line, chosen=single)


def draw_levels(
    table: RecordTable, data: str, styles: Styles, baseline: str, name: str
) -> dict[str, Markup]:
    """Draw test NLL against the percentage of weights, by family of methods."""
    families: dict[str, list[Line]] = {}
    for scheme, gaps in _collect_level_gaps(table, data, baseline).items():
        means = {
            percent: average_seeds(values, table.test_to_train[data])
            for percent, values in sorted(gaps.items())
        }
        label = table.labels.get(scheme, scheme)
        low, high = zip(*map(_find_ends, means.values()), strict=True)
        values = tuple(mean.value for mean in means.values())
        line = Line(scheme, _name_end(scheme, label), tuple(means), values, low, high)
        families.setdefault(label.partition(", ")[0], []).append(_mark_single(line))
    levels = {baseline: 0.0}
    return {
        family: draw_score_lines(
            lines,
            levels,
            styles,
            (size_limits(lines), _limit_bands(lines, levels)),
            ylabel=f"test NLL less that of {table.labels.get(baseline, baseline)}",
            xlabel="percent of weights stochastic",
            name=f"{name}-{index}",
        )
        for index, (family, lines) in enumerate(families.items())
        # A single size of each is a row of the table and no curve.
        if any(len(line.sizes) > 1 for line in lines)
    }


def _limit_bands(lines: Sequence[Line], levels: Mapping[str, float]) -> Limits:
    """Find the ends of an axis for the means: bands may leave it where seeds disagree."""
    means = [replace(line, low=line.value, high=line.value) for line in lines]
    low, high = score_limits(means, levels)
    bottom, top = score_limits(lines, levels)
    room = high - low
    return max(bottom, low - room), min(top, high + room)


def _collect_level_gaps(
    table: RecordTable, data: str, baseline: str
) -> dict[str, dict[float, list[float]]]:
    """Collect test NLL less the baseline's of the same seed, by scheme and percentage."""
    gaps: dict[str, dict[float, list[float]]] = {}
    for record in table.records_of(data):
        nll = table.value((data, record.seed or 0), baseline, "nll")
        if nll is None:
            continue
        for point in read_part(record, "levels") or ():
            if point["level"] > 0:
                levels = gaps.setdefault(point["scheme"], {})
                gap = point["scores"]["nll"]["value"] - nll
                levels.setdefault(point["level"], []).append(gap)
    return gaps


def _name_end(scheme: str, label: str) -> str:
    """Name a line's end: the short name of the choice, or the label without its family."""
    method = METHODS.get(f"uci:{scheme.partition('-')[2]}")
    if method is not None and method.short:
        return method.short
    return shorten_text(label.partition(", ")[2] or label, _LONGEST_END)


def pool_bins(curves: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """Average reliability bins over seeds, bin by bin; they hold equal shares."""
    bins = list(zip(*map(filled_bins, curves), strict=False))
    return {
        "confidence": [fmean(row[0] for row in rows) for rows in bins],
        "accuracy": [fmean(row[1] for row in rows) for rows in bins],
        "count": [sum(row[2] for row in rows) for rows in bins],
    }
