"""Figures of many records: means with intervals, and curves of their means."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from smidgen.report.drawing.palette import PAPER, SOFT, Style
from smidgen.report.drawing.svg import drawing, inline, sheet
from smidgen.report.fields import MAP, TEMPERATURE
from smidgen.report.many_records.aggregate import FEWEST, RecordTable, SeedMean, spread
from smidgen.report.one_record.figures import place_axes
from smidgen.report.one_record.tables import signed
from smidgen.report.ramp.figures import (
    Line,
    float_limits,
    lines,
    score_figure,
    score_limits,
)

_WIDTH, _NAMES, _ROW, _LINE = 384.0, 168.0, 17.0, 11.0
_LONGEST, _LONGEST_END = 30, 14
_FAR_OUT = 1.0
_STEPS = (1, 2, 2.5, 5, 10)
_SCORES = {"nll": "NLL", "ece": "ECE"}


def interval_figure(
    gaps: Mapping[str, SeedMean],
    labels: Mapping[str, str],
    looks: Mapping[str, Style],
    *,
    aside: Collection[str] = (),
    xlabel: str,
    name: str,
) -> str:
    """Draw differences to a baseline with their intervals, a line for each method.

    Args:
        gaps: By method, from top to bottom.
        labels: Names for people.
        looks: How each is drawn.
        aside: Methods that are only numbers at the edge where they lie far from the others.
        xlabel: What is measured.
        name: A name for the figure that no other has.

    Returns:
        The SVG.
    """
    low, high = _limits(gaps, aside)
    names = {method: _lines(labels[method]) for method in gaps}
    # Names on two lines tell methods apart whose names begin alike.
    height = len(gaps) * (_ROW + _LINE * (max(map(len, names.values())) - 1))
    with drawing():
        figure = sheet(_WIDTH, height + 46)
        across = _WIDTH - _NAMES - 16
        axes = place_axes(figure, left=_NAMES, top=4, width=across, height=height)
        axes.axvline(0.0, color=SOFT, linewidth=0.9, dashes=(3, 2.5))
        for row, (method, found) in enumerate(gaps.items()):
            look, y = looks[method], row + 0.5
            place = min(max(found.value, low), high)
            if place == found.value:
                axes.hlines(y, *_ends(found), look.colour, linewidth=1.6)
                marker = look.marker
            else:
                _number_at_edge(axes, found.value, place, y)
                marker = ">" if place == high else "<"
            axes.plot(
                [place], [y], marker, color=look.colour, markersize=6,
                markeredgecolor=PAPER, markeredgewidth=0.6,
            )  # fmt: skip
            for i, line in enumerate(names[method]):
                down = y / len(gaps) + (i - (len(names[method]) - 1) / 2) * _LINE / height
                axes.text(
                    -6 / across, 1 - down, line,
                    transform=axes.transAxes, ha="right", va="center",
                )  # fmt: skip
        room = 0.05 * (high - low)
        axes.set_xlim(low - room, high + room)
        axes.set_ylim(len(gaps), 0)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=_STEPS))
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:.3g}".replace("-", "−"))
        axes.set_xlabel(xlabel)
        axes.grid(True, axis="x")
        axes.set_axisbelow(True)
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
        signed(value), (place, y), (8 * inward, 0),
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


def ramp_curves(ramps: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Join the validation curves of several seeds: each is a repeat of its points.

    Args:
        ramps: The curves of each, with temperature scaling's scores among them.

    Returns:
        Points and the point estimate, all less temperature scaling in the same seed; None
        if no seed has it.
    """
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
        own: dict[float, list[Mapping[str, Any]]] = {}
        for point in ramp["points"]:
            if point["scheme"] == scheme:
                own.setdefault(point["level"], []).append(point)
        if own:
            seeds.append(own)
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


def ramp_figures(
    ramp: Mapping[str, Any], looks: Mapping[str, Style], name: str
) -> list[str]:
    """Draw NLL and ECE on validation data against floats, less those of temperature."""
    found = []
    for score, text in _SCORES.items():
        drawn = [_marked(line) for line in lines(ramp, score)]
        levels = {name: ramp[name][score] for name in (MAP, TEMPERATURE)}
        axis = (float_limits(drawn), score_limits(drawn, levels))
        found.append(
            score_figure(
                drawn,
                levels,
                looks,
                axis,
                ylabel=f"validation {text} − temperature",
                name=f"{name}-{score}",
            )
        )
    return found


def _marked(line: Line) -> Line:
    """Mark the only point of a scheme; of more the line itself is drawn."""
    only = (line.floats[0], line.value[0]) if len(line.floats) == 1 else None
    return replace(line, chosen=only)


def level_figures(
    across: RecordTable, data: str, looks: Mapping[str, Style], baseline: str, name: str
) -> dict[str, str]:
    """Draw what ever more stochastic weights change in test NLL, within each seed.

    Args:
        across: The records.
        data: Which data set.
        looks: How each method is drawn.
        baseline: The method that each is compared with, drawn level across at zero.
        name: A name for the figure that no other has.

    Returns:
        An SVG for each family of methods that has several levels.
    """
    families: dict[str, list[Line]] = {}
    for scheme, own in _level_gaps(across, data, baseline).items():
        found = {
            percent: spread(each, across.test_to_train[data])
            for percent, each in sorted(own.items())
        }
        ends = [_ends(each) for each in found.values()]
        line = Line(
            scheme,
            _end_name(across.labels.get(scheme, scheme)),
            tuple(found),
            tuple(each.value for each in found.values()),
            tuple(low for low, _ in ends),
            tuple(high for _, high in ends),
            None,
        )
        family, _, _ = across.labels.get(scheme, scheme).partition(", ")
        families.setdefault(family, []).append(_marked(line))
    levels = {baseline: 0.0}
    return {
        family: score_figure(
            drawn,
            levels,
            looks,
            (float_limits(drawn), _seen_limits(drawn, levels)),
            ylabel=f"test NLL less that of {across.labels.get(baseline, baseline)}",
            xlabel="percent of weights stochastic",
            name=f"{name}-{place}",
        )
        for place, (family, drawn) in enumerate(families.items())
        # One size of everything is a row of the table and no curve.
        if any(len(line.floats) > 1 for line in drawn)
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
        for each in record.results.get("levels") or ():
            if each["level"] > 0:
                own = found.setdefault(each["scheme"], {})
                gap = each["scores"]["nll"]["value"] - level
                own.setdefault(each["level"], []).append(gap)
    return found


def _narrow(line: Line) -> Line:
    return replace(line, low=line.value, high=line.value)


def _end_name(label: str) -> str:
    """What stands at a line's end: the label without its family, and short."""
    own = label.partition(", ")[2] or label
    for long, brief in (
        ("largest weights", "magnitude"),
        ("largest variances", "variance"),
        (" weights", ""),
    ):
        own = own.replace(long, brief)
    return own if len(own) <= _LONGEST_END else own[: _LONGEST_END - 1] + "…"


def pooled_bins(curves: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """Average reliability bins over seeds, bin by bin; they hold equal shares."""
    bins = list(zip(*(_rows(each) for each in curves), strict=False))
    return {
        "confidence": [fmean(row[0] for row in each) for each in bins],
        "accuracy": [fmean(row[1] for row in each) for each in bins],
        "count": [sum(row[2] for row in each) for each in bins],
    }


def _rows(curve: Mapping[str, Sequence[float]]) -> list[tuple[float, float, float]]:
    rows = zip(curve["confidence"], curve["accuracy"], curve["count"], strict=True)
    return [row for row in rows if row[2]]
