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
_LONGEST, _LONGEST_END = 26, 14
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
    means: Mapping[str, Spread],
    labels: Mapping[str, str],
    looks: Mapping[str, Look],
    *,
    reference: float | None,
    xlabel: str,
    name: str,
) -> str:
    """Draw means over seeds with their intervals, a line for each method.

    Args:
        means: By method, from top to bottom.
        labels: Names for people.
        looks: How each is drawn.
        reference: Where a dashed line goes down: the baseline's mean.
        xlabel: What is measured.
        name: A name for the figure that no other has.

    Returns:
        The SVG.
    """
    ends = [x for each in means.values() for x in _ends(each)]
    low, high = min(ends), max(ends)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
    height = _ROW * len(means)
    with drawing():
        figure = sheet(_WIDTH, height + 46)
        across = _WIDTH - _NAMES - 16
        axes = place_axes(figure, left=_NAMES, top=4, width=across, height=height)
        if reference is not None:
            axes.axvline(reference, color=SOFT, linewidth=0.9, dashes=(3, 2.5))
        for row, (method, found) in enumerate(means.items()):
            look, y = looks[method], row + 0.5
            axes.hlines(y, *_ends(found), look.colour, linewidth=1.6)
            axes.plot(
                [found.value], [y], look.marker, color=look.colour, markersize=6,
                markeredgecolor=PAPER, markeredgewidth=0.6,
            )  # fmt: skip
            text = labels[method]
            text = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
            axes.text(
                -6 / across, 1 - y / len(means), text,
                transform=axes.transAxes, ha="right", va="center",
            )  # fmt: skip
        axes.set_xlim(low - room, high + room)
        axes.set_ylim(len(means), 0)
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


def level_figure(
    across: Across, data: str, looks: Mapping[str, Look], baseline: str, name: str
) -> str | None:
    """Draw test NLL against the percentage of stochastic weights, means over seeds.

    Args:
        across: The records.
        data: Which data set.
        looks: How each method is drawn.
        baseline: The method drawn level across.
        name: A name for the figure that no other has.

    Returns:
        The SVG, or None if no record has levels.
    """
    values: dict[str, dict[float, list[float]]] = {}
    for levels in across.parts(data, "levels"):
        for level in levels:
            if level["level"] > 0:
                own = values.setdefault(level["scheme"], {})
                own.setdefault(level["level"], []).append(level["scores"]["nll"]["value"])
    if not values:
        return None
    drawn = []
    for scheme, own in values.items():
        found = {percent: spread(each) for percent, each in sorted(own.items())}
        ends = [_ends(each) for each in found.values()]
        drawn.append(
            Line(
                scheme,
                _short(across.labels.get(scheme, scheme)),
                tuple(found),
                tuple(each.value for each in found.values()),
                tuple(low for low, _ in ends),
                tuple(high for _, high in ends),
                None,
            )
        )
    drawn = [_marked(line) for line in drawn]
    level = across.mean(data, baseline, "nll")
    levels = {baseline: level.value} if level else {}
    # Bands may reach far where seeds disagree; the means are what must be seen.
    means = [_narrow(line) for line in drawn]
    axis = (float_limits(means), score_limits(means, levels))
    return score_figure(
        drawn,
        levels,
        looks,
        axis,
        ylabel="NLL on test data",
        xlabel="percent of weights stochastic",
        name=name,
    )


def _narrow(line: Line) -> Line:
    return replace(line, low=line.value, high=line.value)


def _short(label: str) -> str:
    for long, brief in (
        ("Laplace, ", "LA "),
        ("SWAG, ", "SW "),
        ("largest weights", "magnitude"),
        ("largest variances", "variance"),
        ("random weights", "random"),
        ("all weights", "all"),
    ):
        label = label.replace(long, brief)
    return label if len(label) <= _LONGEST_END else label[: _LONGEST_END - 1] + "…"


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
