"""Figures: from plain lists, as a record holds them, to inline SVG.

Each is drawn about as wide as a phone, so that its text is readable there and only grows
on a larger screen. Names of methods stand beside the figure, in the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from math import floor
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from smidgen.report.drawing.palette import FAINT, INK, PAPER, SOFT, Style
from smidgen.report.drawing.svg import drawing, inline, sheet
from smidgen.report.fields import Interval, bounded
from smidgen.report.one_record.tables import significant

_WIDTH = 360.0
_HEIGHT = 244.0
_FEWEST = 0.05
_STEPS = (1, 2, 2.5, 5, 10)
# In small figures ticks must be short: 0.4 and 0.6, not 0.25.
_WHOLE_STEPS = (1, 2, 5, 10)
_MOST_POINTS = 160
_LONGEST_NAME = 44

Columns = Mapping[str, Sequence[float]]


def reliability(
    points: Mapping[str, Columns], looks: Mapping[str, Style], prefix: str = "reliability"
) -> dict[str, str]:
    """Draw accuracy against confidence, a small figure per method on common axes.

    Args:
        points: `confidence`, `accuracy` and `count` of the bins, by method.
        looks: How each method is drawn.
        prefix: Stands before the names of the figures.

    Returns:
        One SVG per method.
    """
    bins = {name: _filled(columns) for name, columns in points.items()}
    seen = [share for rows in bins.values() for row in rows for share in row[:2]]
    start = floor(10 * min([0.9, *seen])) / 10
    most = max([1.0, *(row[2] for rows in bins.values() for row in rows)])
    return {
        name: _reliability_panel(rows, looks[name], start, most, f"{prefix}-{i}")
        for i, (name, rows) in enumerate(bins.items())
    }


def _filled(columns: Columns) -> list[tuple[float, float, float]]:
    """List the bins that hold anything, by confidence."""
    rows = zip(columns["confidence"], columns["accuracy"], columns["count"], strict=True)
    return sorted(row for row in rows if row[2])


def _reliability_panel(
    rows: Sequence[tuple[float, float, float]],
    look: Style,
    start: float,
    most: float,
    name: str,
) -> str:
    with drawing():
        figure = sheet(172, 198)
        main = place_axes(figure, left=44, top=5, width=122, height=122)
        below = place_axes(figure, left=44, top=134, width=122, height=22)
        room = 0.03 * (1 - start)
        for axes in (main, below):
            axes.set_xlim(start - room, 1 + room)
            axes.xaxis.set_major_locator(MaxNLocator(3, steps=_WHOLE_STEPS))
            axes.xaxis.set_major_formatter("{x:g}")
        main.plot([start, 1], [start, 1], color=SOFT, linewidth=0.9, dashes=(3, 2.5))
        confidence = [row[0] for row in rows]
        accuracy = [row[1] for row in rows]
        sizes = [10 + 34 * row[2] / most for row in rows]
        main.vlines(confidence, confidence, accuracy, look.colour, alpha=0.3, lw=2)
        main.plot(confidence, accuracy, color=look.colour, linewidth=1.2)
        main.scatter(
            confidence, accuracy, s=sizes, color=look.colour, marker=look.marker,
            zorder=3, edgecolors=PAPER, linewidths=0.6,
        )  # fmt: skip
        main.set_ylim(start - room, 1 + room)
        main.yaxis.set_major_locator(MaxNLocator(3, steps=_WHOLE_STEPS))
        main.yaxis.set_major_formatter("{x:g}")
        main.tick_params(labelbottom=False)
        main.set_ylabel("accuracy", labelpad=3)
        main.grid(True)
        main.set_axisbelow(True)
        below.vlines(confidence, 0, [row[2] for row in rows], look.colour, lw=2.5)
        below.set_ylim(0, 1.05 * most)
        below.set_yticks([])
        below.spines["left"].set_visible(False)
        below.set_xlabel("confidence", labelpad=3)
        return inline(figure, name, "Reliability: accuracy against confidence")


def risk_coverage(curves: Mapping[str, Columns], looks: Mapping[str, Style]) -> str:
    """Draw the error rate among the answers kept, a line per method.

    Args:
        curves: `coverage` and `risk`, by method.
        looks: How each method is drawn.

    Returns:
        The SVG.
    """
    with drawing():
        figure = sheet(_WIDTH, _HEIGHT)
        axes = place_axes(figure, left=52, top=8, width=290, height=194)
        highest = 0.0
        for name, curve in curves.items():
            kept = _thinned(curve)
            highest = max([highest, *(risk for _, risk in kept)])
            draw_line(axes, [x for x, _ in kept], [y for _, y in kept], looks[name])
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1.08 * highest or 1)
        axes.xaxis.set_major_formatter(lambda x, _: f"{100 * x:.0f} %")
        axes.yaxis.set_major_formatter(lambda y, _: f"{100 * y:.3g} %")
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
        axes.set_xlabel("answers kept, most certain first")
        axes.set_ylabel("errors among them")
        tidy(axes)
        return inline(
            figure, "risk-coverage", "Risk and coverage: errors among answers kept"
        )


def _thinned(curve: Columns) -> list[tuple[float, float]]:
    """Keep what can be seen; the first few answers are too few for a rate."""
    rows = sorted(zip(curve["coverage"], curve["risk"], strict=True))
    rows = [row for row in rows if row[0] >= _FEWEST] or rows
    step = max(1, len(rows) // _MOST_POINTS)
    return [*rows[:-1:step], *rows[-1:]]


def shift_detection(
    detection: Mapping[str, Mapping[str, Interval]], looks: Mapping[str, Style]
) -> dict[str, str]:
    """Draw AUROCs with their intervals, a small figure per shifted set.

    Args:
        detection: Intervals by method and by set.
        looks: How each method is drawn.

    Returns:
        One SVG per set, all on one axis; the dashed line is chance.
    """
    sets = list(dict.fromkeys(chain.from_iterable(detection.values())))
    limits = _limits([one for found in detection.values() for one in found.values()], 0.5)
    return {
        shifted: _intervals(
            {name: found.get(shifted) for name, found in detection.items()},
            looks,
            limits,
            name=f"shift-detection-{i}",
            title=f"Shift detection: AUROC on {plain_name(shifted)}",
            size=(172.0, 15.0 * len(detection)),
        )
        for i, shifted in enumerate(sets)
    }


def human_disagreement(found: Mapping[str, Interval], looks: Mapping[str, Style]) -> str:
    """Draw how well uncertainty follows human disagreement, an interval per method.

    Args:
        found: Intervals by method.
        looks: How each method is drawn.

    Returns:
        The SVG.
    """
    return _intervals(
        found,
        looks,
        _limits(list(found.values()), 0.0),
        name="human-disagreement",
        title="How well uncertainty follows human disagreement",
        size=(_WIDTH, 32.0 * len(found)),
    )


def _limits(found: Sequence[Interval], reference: float) -> tuple[float, float, float]:
    """Give the ends of an axis that shows every interval, and its reference."""
    keys = ("value", "low", "high")
    values = [one[key] for one in found if one for key in keys if one.get(key) is not None]
    low, high = min([reference, *values]), max([reference, *values])
    room = 0.06 * (high - low) or 0.05
    return low - room, high + room, reference


def _intervals(
    found: Mapping[str, Interval | None],
    looks: Mapping[str, Style],
    limits: tuple[float, float, float],
    *,
    name: str,
    title: str,
    size: tuple[float, float],
) -> str:
    width, height = size
    with drawing():
        figure = sheet(width, height + 28)
        axes = place_axes(figure, left=6, top=4, width=width - 12, height=height)
        axes.axvline(limits[2], color=SOFT, linewidth=0.9, dashes=(3, 2.5))
        for i, (method, one) in enumerate(found.items()):
            if one:
                _whisker(axes, one, i + 0.5, looks[method])
        axes.set_xlim(*limits[:2])
        axes.set_ylim(len(found), 0)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(4 if width < _WIDTH else 6, steps=_STEPS))
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:.3g}".replace("-", "−"))
        axes.grid(True, axis="x")
        axes.set_axisbelow(True)
        return inline(figure, name, title)


def _whisker(axes: Axes, found: Interval, y: float, look: Style) -> None:
    if bounded(found):
        axes.hlines(y, found["low"], found["high"], look.colour, linewidth=1.6)
    axes.plot(
        [found["value"]], [y], look.marker, color=look.colour, markersize=6,
        markeredgecolor=PAPER, markeredgewidth=0.6,
    )  # fmt: skip


def precision_curve(curve: Mapping[str, Any], looks: Mapping[str, Style]) -> str:
    """Draw validation NLL against prior precision, and what it is chosen against.

    Args:
        curve: `precision` and `nll`, and where known `nll_with_temperature`,
            `map_nll`, `temperature_nll`, `chosen_precision`, `chosen_temperature`.
        looks: How each line is drawn: those of the methods, and `precision` and
            `precision-temperature` for the two curves.

    Returns:
        The SVG.
    """
    lines = {"precision": "nll", "precision-temperature": "nll_with_temperature"}
    levels = {"map": "map_nll", "temperature": "temperature_nll"}
    drawn = {name: curve[key] for name, key in lines.items() if curve.get(key)}
    flat = {name: curve[key] for name, key in levels.items() if curve.get(key)}
    values = [*chain.from_iterable(drawn.values()), *flat.values()]
    with drawing():
        figure = sheet(_WIDTH, _HEIGHT)
        axes = place_axes(figure, left=52, top=8, width=290, height=194)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(numticks=6))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda x, _: _power(x))
        for name, level in flat.items():
            draw_line(
                axes, curve["precision"], [level] * len(curve["precision"]), looks[name]
            )
        for name, line in drawn.items():
            draw_line(axes, curve["precision"], line, looks[name])
        low, high = min(values), max(values)
        room = high - low or abs(high) or 1.0
        axes.set_xlim(min(curve["precision"]), max(curve["precision"]))
        axes.set_ylim(low - 0.2 * room, high + 0.06 * room)
        _mark_chosen(axes, curve, list(drawn.values())[-1], looks["precision"])
        # The lowest grid line would run through the words beside the chosen point.
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS, prune="lower"))
        axes.set_xlabel("prior precision τ")
        axes.set_ylabel("NLL on validation data")
        tidy(axes)
        return inline(figure, "precision-curve", "Validation NLL against prior precision")


def _power(value: float) -> str:
    """Label a tick of a log axis."""
    return f"{value:,g}" if 1e-3 < value < 9e3 else significant(value).split("×")[-1]


def _mark_chosen(
    axes: Axes, curve: Mapping[str, Any], line: Sequence[float], look: Style
) -> None:
    chosen = curve.get("chosen_precision")
    if chosen is None:
        return
    rows = sorted(zip(curve["precision"], line, strict=True))
    height = min(rows, key=lambda row: abs(row[0] - chosen))[1]
    text = f"τ = {significant(chosen)}"
    if curve.get("chosen_temperature") is not None:
        text += f", T = {significant(curve['chosen_temperature'])}"
    axes.plot(
        [chosen], [height], look.marker, color=look.colour, markersize=9,
        markeredgecolor=PAPER, markeredgewidth=1.2, zorder=5, clip_on=False,
    )  # fmt: skip
    bottom, top = axes.get_ylim()
    axes.vlines(chosen, bottom, height, look.colour, linewidth=0.8)
    left, right = axes.get_xlim()
    leftwards = chosen > (left * right) ** 0.5
    # No curve comes down into the lowest tenth of the plot, so the words are alone.
    axes.annotate(
        text, (chosen, bottom + 0.06 * (top - bottom)), (-5 if leftwards else 5, 0),
        textcoords="offset points", color=INK, va="center",
        ha="right" if leftwards else "left",
    )  # fmt: skip


def place_axes(
    figure: Figure, *, left: float, top: float, width: float, height: float
) -> Axes:
    """Place axes by pixels from the upper left corner."""
    wide, tall = figure.get_size_inches() * figure.dpi
    bottom = tall - top - height
    return figure.add_axes((left / wide, bottom / tall, width / wide, height / tall))


def draw_line(axes: Axes, x: Sequence[float], y: Sequence[float], look: Style) -> None:
    """Draw a line as its method is drawn everywhere."""
    style: Any = (0, look.dash) if look.dash else "solid"
    axes.plot(x, y, color=look.colour, linewidth=1.7, linestyle=style)


def tidy(axes: Axes) -> None:
    """Leave level grid lines and no left edge."""
    axes.grid(True, axis="y", color=FAINT)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def plain_name(name: str) -> str:
    """Keep what XML can hold of a name from the user's data, and not too much of it."""
    text = "".join(letter for letter in str(name) if letter.isprintable())
    return text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 1] + "…"
