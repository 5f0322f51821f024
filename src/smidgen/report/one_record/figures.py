"""Figures: from plain lists, as a record holds them, to inline SVG.

Each is drawn about as wide as a phone, so that its text is readable there and only grows
on a larger screen. Names of methods stand beside the figure, in the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from math import floor
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from smidgen.report.drawing.axes import (
    STEPS,
    WHOLE_STEPS,
    clean_name,
    draw_line,
    draw_markers,
    draw_reference,
    draw_whisker,
    keep_level_grid,
    pad_limits,
    place_axes,
    set_log_ticks,
    set_rows,
)
from smidgen.report.drawing.palette import INK, PAPER, Style, Styles
from smidgen.report.drawing.svg import drawing, inline, sheet
from smidgen.report.fields import Estimate, has_bounds
from smidgen.report.formats import format_significant

_WIDTH = 360.0
_HEIGHT = 244.0
_FEWEST = 0.05
_MOST_POINTS = 160

Columns = Mapping[str, Sequence[float]]
Bin = tuple[float, float, float]
"""Confidence, accuracy and count."""


def draw_reliability(
    curves: Mapping[str, Columns], styles: Styles, prefix: str = "reliability"
) -> dict[str, Markup]:
    """Draw accuracy against confidence, a small figure per method on common axes."""
    bins = {name: sorted(filled_bins(curve)) for name, curve in curves.items()}
    values = [value for rows in bins.values() for row in rows for value in row[:2]]
    start = floor(10 * min([0.9, *values])) / 10
    largest = max([1.0, *(row[2] for rows in bins.values() for row in rows)])
    return {
        name: _draw_reliability_panel(rows, styles[name], start, largest, f"{prefix}-{i}")
        for i, (name, rows) in enumerate(bins.items())
    }


def filled_bins(curve: Columns) -> list[Bin]:
    """List the bins that hold anything."""
    rows = zip(curve["confidence"], curve["accuracy"], curve["count"], strict=True)
    return [row for row in rows if row[2]]


def _draw_reliability_panel(
    rows: Sequence[Bin], style: Style, start: float, largest: float, name: str
) -> Markup:
    with drawing():
        figure = sheet(172, 198)
        main = place_axes(figure, left=44, top=5, width=122, height=122)
        below = place_axes(figure, left=44, top=134, width=122, height=22)
        room = 0.03 * (1 - start)
        for axes in (main, below):
            axes.set_xlim(start - room, 1 + room)
        for axis in (main.xaxis, below.xaxis, main.yaxis):
            axis.set_major_locator(MaxNLocator(3, steps=WHOLE_STEPS))
            axis.set_major_formatter("{x:g}")
        draw_reference(main, [start, 1], [start, 1])
        confidence = [row[0] for row in rows]
        accuracy = [row[1] for row in rows]
        sizes = [10 + 34 * row[2] / largest for row in rows]
        main.vlines(confidence, confidence, accuracy, style.colour, alpha=0.3, lw=2)
        main.plot(confidence, accuracy, color=style.colour, linewidth=1.2)
        main.scatter(
            confidence, accuracy, s=sizes, color=style.colour, marker=style.marker,
            zorder=3, edgecolors=PAPER, linewidths=0.6,
        )  # fmt: skip
        main.set_ylim(start - room, 1 + room)
        main.tick_params(labelbottom=False)
        main.set_ylabel("accuracy", labelpad=3)
        main.grid(True)
        main.set_axisbelow(True)
        below.vlines(confidence, 0, [row[2] for row in rows], style.colour, lw=2.5)
        below.set_ylim(0, 1.05 * largest)
        below.set_yticks([])
        below.spines["left"].set_visible(False)
        below.set_xlabel("confidence", labelpad=3)
        return inline(figure, name, "Reliability: accuracy against confidence")


def draw_risk_coverage(
    curves: Mapping[str, Columns],
    styles: Styles,
    chosen: Mapping[str, tuple[float, float]] | None = None,
    max_error: float | None = None,
) -> Markup:
    """Draw the error rate among the answers kept, a line per method.

    Args:
        curves: Coverage and risk of each method.
        styles: How each is drawn.
        chosen: The share that each method may answer and its error there, to be marked.
        max_error: The error that those are chosen for, drawn as a level line.

    Returns:
        The figure.
    """
    with drawing():
        figure = sheet(_WIDTH, _HEIGHT)
        axes = place_axes(figure, left=52, top=8, width=290, height=194)
        highest = 0.0
        for name, curve in curves.items():
            points = _thin_out(curve)
            highest = max([highest, *(risk for _, risk in points)])
            draw_line(axes, [x for x, _ in points], [y for _, y in points], styles[name])
        if max_error is not None:
            highest = max(highest, max_error)
            draw_reference(axes, [0, 1], [max_error, max_error])
        for name, (share, error) in (chosen or {}).items():
            axes.vlines(share, 0, error, styles[name].colour, linewidth=0.8, alpha=0.7)
            draw_markers(axes, [share], [error], styles[name], size=8.5, edge=1.2)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.08 * highest or 1)
        axes.xaxis.set_major_formatter(lambda x, _: f"{100 * x:.0f} %")
        axes.yaxis.set_major_formatter(lambda y, _: f"{100 * y:.3g} %")
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=STEPS))
        axes.set_xlabel("answers kept, most certain first")
        axes.set_ylabel("errors among them")
        keep_level_grid(axes)
        title = "Risk and coverage: errors among answers kept"
        return inline(figure, "risk-coverage", title)


def _thin_out(curve: Columns) -> list[tuple[float, float]]:
    """Keep what can be seen; the first few answers are too few for a rate."""
    rows = sorted(zip(curve["coverage"], curve["risk"], strict=True))
    rows = [row for row in rows if row[0] >= _FEWEST] or rows
    step = max(1, len(rows) // _MOST_POINTS)
    return [*rows[:-1:step], *rows[-1:]]


def draw_shift_detection(
    detection: Mapping[str, Mapping[str, Estimate]], styles: Styles
) -> dict[str, Markup]:
    """Draw AUROCs with their intervals, a small figure per shifted set."""
    names = list(dict.fromkeys(chain.from_iterable(detection.values())))
    limits = _find_limits((e for sets in detection.values() for e in sets.values()), 0.5)
    return {
        shifted: _draw_estimates(
            {method: sets.get(shifted) for method, sets in detection.items()},
            styles,
            (limits, 0.5),
            name=f"shift-detection-{i}",
            title=f"Shift detection: AUROC on {clean_name(shifted)}",
            size=(172.0, 15.0 * len(detection)),
        )
        for i, shifted in enumerate(names)
    }


def draw_disagreement(estimates: Mapping[str, Estimate], styles: Styles) -> Markup:
    """Draw how well uncertainty follows human disagreement, an interval per method."""
    return _draw_estimates(
        estimates,
        styles,
        (_find_limits(estimates.values(), 0.0), 0.0),
        name="human-disagreement",
        title="How well uncertainty follows human disagreement",
        size=(_WIDTH, 32.0 * len(estimates)),
    )


def _find_limits(estimates: Any, reference: float) -> tuple[float, float]:
    values = (e.get(key) for e in estimates if e for key in ("value", "low", "high"))
    return pad_limits([reference, *(value for value in values if value is not None)])


def _draw_estimates(
    estimates: Mapping[str, Estimate | None],
    styles: Styles,
    axis: tuple[tuple[float, float], float],
    *,
    name: str,
    title: str,
    size: tuple[float, float],
) -> Markup:
    width, height = size
    with drawing():
        figure = sheet(width, height + 28)
        axes = place_axes(figure, left=6, top=4, width=width - 12, height=height)
        set_rows(axes, len(estimates), *axis, 4 if width < _WIDTH else 6)
        for i, (method, estimate) in enumerate(estimates.items()):
            if estimate:
                bounded = has_bounds(estimate)
                ends = (estimate["low"], estimate["high"]) if bounded else None
                draw_whisker(axes, i + 0.5, estimate["value"], ends, styles[method])
        return inline(figure, name, title)


def draw_precision_curve(curve: Mapping[str, Any], styles: Styles) -> Markup:
    """Draw validation NLL against prior precision, and what it is chosen against."""
    keys = {"precision": "nll", "precision-temperature": "nll_with_temperature"}
    levels = {"map": "map_nll", "temperature": "temperature_nll"}
    curves = {name: curve[key] for name, key in keys.items() if curve.get(key)}
    flat = {name: curve[key] for name, key in levels.items() if curve.get(key)}
    values = [*chain.from_iterable(curves.values()), *flat.values()]
    precision = curve["precision"]
    with drawing():
        figure = sheet(_WIDTH, _HEIGHT)
        axes = place_axes(figure, left=52, top=8, width=290, height=194)
        axes.set_xscale("log")
        set_log_ticks(axes.xaxis, 6)
        axes.xaxis.set_major_formatter(lambda x, _: _format_power(x))
        for name, level in flat.items():
            draw_line(axes, precision, [level] * len(precision), styles[name])
        for name, line in curves.items():
            draw_line(axes, precision, line, styles[name])
        low, high = min(values), max(values)
        room = high - low or abs(high) or 1.0
        axes.set_xlim(min(precision), max(precision))
        axes.set_ylim(low - 0.2 * room, high + 0.06 * room)
        _mark_chosen(axes, curve, list(curves.values())[-1], styles["precision"])
        # The lowest grid line would run through the words beside the chosen point.
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=STEPS, prune="lower"))
        axes.set_xlabel("prior precision τ")
        axes.set_ylabel("NLL on validation data")
        keep_level_grid(axes)
        return inline(figure, "precision-curve", "Validation NLL against prior precision")


def _format_power(value: float) -> str:
    """Label a tick of a log axis."""
    plain = 1e-3 < value < 9e3
    return f"{value:,g}" if plain else format_significant(value).split("×")[-1]


def _mark_chosen(
    axes: Axes, curve: Mapping[str, Any], line: Sequence[float], style: Style
) -> None:
    chosen = curve.get("chosen_precision")
    if chosen is None:
        return
    rows = sorted(zip(curve["precision"], line, strict=True))
    height = min(rows, key=lambda row: abs(row[0] - chosen))[1]
    text = f"τ = {format_significant(chosen)}"
    if curve.get("chosen_temperature") is not None:
        text += f", T = {format_significant(curve['chosen_temperature'])}"
    draw_markers(axes, [chosen], [height], style, size=9, edge=1.2)
    bottom, top = axes.get_ylim()
    axes.vlines(chosen, bottom, height, style.colour, linewidth=0.8)
    left, right = axes.get_xlim()
    leftwards = chosen > (left * right) ** 0.5
    # No curve comes down into the lowest tenth of the plot, so the words are alone.
    axes.annotate(
        text, (chosen, bottom + 0.06 * (top - bottom)), (-5 if leftwards else 5, 0),
        textcoords="offset points", color=INK, va="center",
        ha="right" if leftwards else "left",
    )  # fmt: skip
