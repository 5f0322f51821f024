"""Figures of many records: means with intervals, and curves of their means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from matplotlib.ticker import MaxNLocator

from smidgen.report.across import Across, Spread, spread
from smidgen.report.figures import place_axes
from smidgen.report.palette import PAPER, SOFT, Look
from smidgen.report.ramp_figures import (
    Line,
    float_limits,
    lines,
    score_figure,
    score_limits,
)
from smidgen.report.ramp_page import SHORT
from smidgen.report.svg import drawing, inline, sheet

_WIDTH, _NAMES, _ROW = 384.0, 168.0, 17.0
_LONGEST, _LONGEST_END = 28, 14
_STEPS = (1, 2, 2.5, 5, 10)
_SCORES = {"nll": "NLL", "ece": "ECE"}
_LABELS = {
    **SHORT,
    **{
        f"swag-{name}": "SW " + text.replace("attention", "att.")
        for name, text in SHORT.items()
    },
}


def interval_figure(
    gaps: Mapping[str, Spread],
    labels: Mapping[str, str],
    looks: Mapping[str, Look],
    *,
    xlabel: str,
    name: str,
) -> str:
    """Draw differences to a baseline with their intervals, a line for each method.

    Args:
        gaps: By method, from top to bottom.
        labels: Names for people.
        looks: How each is drawn.
        xlabel: What is measured.
        name: A name for the figure that no other has.

    Returns:
        The SVG.
    """
    ends = [0.0, *(x for each in gaps.values() for x in _ends(each))]
    low, high = min(ends), max(ends)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
    height = _ROW * len(gaps)
    with drawing():
        figure = sheet(_WIDTH, height + 46)
        across = _WIDTH - _NAMES - 16
        axes = place_axes(figure, left=_NAMES, top=4, width=across, height=height)
        axes.axvline(0.0, color=SOFT, linewidth=0.9, dashes=(3, 2.5))
        for row, (method, found) in enumerate(gaps.items()):
            look, y = looks[method], row + 0.5
            axes.hlines(y, *_ends(found), look.colour, linewidth=1.6)
            axes.plot(
                [found.value], [y], look.marker, color=look.colour, markersize=6,
                markeredgecolor=PAPER, markeredgewidth=0.6,
            )  # fmt: skip
            text = labels[method]
            text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
            axes.text(
                -6 / across, 1 - y / len(gaps), text,
                transform=axes.transAxes, ha="right", va="center",
            )  # fmt: skip
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


def _ends(found: Spread) -> tuple[float, float]:
    low = found.value if found.low is None else found.low
    high = found.value if found.high is None else found.high
    return low, high


def ramp_curves(ramps: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Join the validation curves of several seeds: each is a repeat of its points."""
    if not ramps:
        return None
    points = [point for ramp in ramps for point in ramp["points"]]
    found: dict[str, Any] = {"points": points, "chosen": {}}
    for baseline in ("map", "temperature"):
        own = [ramp[baseline] for ramp in ramps if ramp.get(baseline)]
        if own:
            found[baseline] = {score: fmean(e[score] for e in own) for score in _SCORES}
    return found


def ramp_figures(
    ramp: Mapping[str, Any], looks: Mapping[str, Look], name: str
) -> list[str]:
    """Draw NLL and ECE on validation data against floats, means over seeds."""
    found = []
    for score, text in _SCORES.items():
        drawn = [_marked(line) for line in lines(ramp, _LABELS, score)]
        levels = {b: ramp[b][score] for b in ("map", "temperature") if ramp.get(b)}
        axis = (float_limits(drawn), score_limits(drawn, levels))
        found.append(
            score_figure(
                drawn,
                levels,
                looks,
                axis,
                ylabel=f"{text} on validation data",
                name=f"{name}-{score}",
            )
        )
    return found


def _marked(line: Line) -> Line:
    """Mark the only point of a scheme; of more the line itself is drawn."""
    only = (line.floats[0], line.value[0]) if len(line.floats) == 1 else None
    return replace(line, chosen=only)


def level_figures(
    across: Across, data: str, looks: Mapping[str, Look], baseline: str, name: str
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
        found = {percent: spread(each) for percent, each in sorted(own.items())}
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
    across: Across, data: str, baseline: str
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
