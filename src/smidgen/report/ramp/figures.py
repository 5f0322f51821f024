"""Figures of a ramp: scores against size, and norms by layer.

Lines carry their names at their right ends; names are moved apart where they would meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from smidgen.report.drawing.axes import (
    clean_name,
    draw_line,
    draw_markers,
    keep_level_grid,
    move_apart,
    place_axes,
    set_decimal_ticks,
    set_log_ticks,
)
from smidgen.report.drawing.palette import SOFT, Style, Styles
from smidgen.report.drawing.svg import drawing, inline, sheet
from smidgen.report.names import shorten_method
from smidgen.report.ramp.layers import LayerPosition

_WIDTH, _HEIGHT = 384.0, 258.0
_LEFT, _TOP, _ACROSS, _DOWN = 70.0, 10.0, 200.0, 204.0
# A level this many times as far away as all the points together is named, not drawn.
_FAR = 1.0
_LONGEST = 16
# Below this ratio of its ends an axis of floats has ticks at 3, 30 and so on too.
_FEW_DECADES = 10**2.6
_DECADE = 10.0
_MARKERS = "os^vD*"
_DASHES = ((), (5.0, 1.6), (2.0, 1.2), (6.0, 1.6, 1.2, 1.6), (1.2, 1.2))
SIZES = {"floats": "floats stored", "weights": "weights stochastic"}
"""Names of the sizes that points of a ramp have."""
RAMP_SCORES = {"nll": "NLL", "ece": "ECE"}
"""Names of the scores on validation data."""
Limits = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One scheme: sizes across, a score up, and the range of its repeats."""

    scheme: str
    label: str
    sizes: tuple[float, ...]  # ascending
    value: tuple[float, ...]  # the means over repeats
    low: tuple[float, ...]
    high: tuple[float, ...]
    chosen: tuple[float, float] | None = None  # size and score


@dataclass(frozen=True)
class _End:
    """A name to be written at the right, joined to where its line ends, in pixels."""

    text: str
    x: float
    y: float
    colour: str
    joined: bool = True


def collect_lines(ramp: Mapping[str, Any], score: str, size: str = "floats") -> list[Line]:
    """Gather the points of a ramp into a line for each scheme; `size` is "weights" too."""
    points = ramp["points"]
    lines = []
    for scheme in dict.fromkeys(point["scheme"] for point in points):
        levels = group_levels(points, scheme).values()
        rows = sorted(_summarise_level(group, score, size) for group in levels)
        sizes, value, low, high = (tuple(column) for column in zip(*rows, strict=True))
        index = ramp["chosen"].get(scheme)
        best = None if index is None else points[index]
        chosen = best and (best[size], best[score])
        lines.append(Line(scheme, shorten_method(scheme), sizes, value, low, high, chosen))
    return lines


def group_levels(
    points: Sequence[Mapping[str, Any]], scheme: str
) -> dict[float, list[Mapping[str, Any]]]:
    """Group the points of a scheme by their level."""
    levels: dict[float, list[Mapping[str, Any]]] = {}
    for point in points:
        if point["scheme"] == scheme:
            levels.setdefault(point["level"], []).append(point)
    return levels


def _summarise_level(
    group: Sequence[Mapping[str, Any]], score: str, size: str
) -> tuple[float, float, float, float]:
    values = [point[score] for point in group]
    mean_size = sum(point[size] for point in group) / len(group)
    return mean_size, sum(values) / len(values), min(values), max(values)


def size_limits(lines: Sequence[Line]) -> Limits:
    """Find the ends of an axis of sizes that shows every line."""
    sizes = [max(1.0, x) for line in lines for x in line.sizes]
    sizes += [max(1.0, line.chosen[0]) for line in lines if line.chosen]
    return min(sizes) / 1.25, max(sizes) * 1.25


def score_limits(lines: Sequence[Line], levels: Mapping[str, float]) -> Limits:
    """Find the ends of an axis that shows every line, and levels that are not far away."""
    values = [y for line in lines for y in (*line.low, *line.high)]
    low, high = min(values), max(values)
    spread = max(high - low, 1e-3 * abs(high), 1e-9)
    near = (low - _FAR * spread, high + _FAR * spread)
    values += [level for level in levels.values() if near[0] <= level <= near[1]]
    low, high = min(values), max(values)
    room = 0.06 * max(high - low, spread)
    return low - room, high + room


def draw_score_lines(
    lines: Sequence[Line],
    levels: Mapping[str, float],
    styles: Styles,
    axis: tuple[Limits, Limits],
    *,
    ylabel: str,
    name: str,
    xlabel: str = SIZES["floats"],
) -> Markup:
    """Draw a score against the floats stored, or another size."""
    with drawing():
        figure, axes = _start_axes(axis, xlabel, ylabel)
        axes.set_xscale("log")
        axes.set_xlim(*axis[0])
        ratio = axis[0][1] / axis[0][0]
        set_log_ticks(axes.xaxis, 6, (1, 3) if ratio < _FEW_DECADES else (1,))
        if ratio < _DECADE:
            # Within a decade powers of ten may all be outside.
            axes.xaxis.set_major_locator(MaxNLocator(3))
            axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda x, _: _format_size(x))
        ends = [_draw_level(axes, y, key, styles[key]) for key, y in levels.items()]
        ends += [_draw_scheme(axes, line, styles[line.scheme]) for line in lines]
        _name_ends(axes, ends)
        return inline(figure, name, f"{ylabel} against {xlabel}")


def _start_axes(
    axis: tuple[Limits, Limits], xlabel: str, ylabel: str
) -> tuple[Figure, Axes]:
    figure = sheet(_WIDTH, _HEIGHT)
    axes = place_axes(figure, left=_LEFT, top=_TOP, width=_ACROSS, height=_DOWN)
    axes.set_xlim(*axis[0])
    axes.set_ylim(*axis[1])
    set_decimal_ticks(axes.yaxis)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel, labelpad=4)
    keep_level_grid(axes)
    return figure, axes


def _draw_level(axes: Axes, level: float, key: str, style: Style) -> _End:
    """Draw a baseline across; one beyond the axis is only named, with its value."""
    bottom, top = axes.get_ylim()
    text = shorten_method(key)
    visible = bottom <= level <= top
    if visible:
        draw_line(axes, list(axes.get_xlim()), [level, level], style)
    else:
        text += f" {level:.3f} {'↑' if level > top else '↓'}"
    height = _to_pixels(axes, 1.0, min(max(level, bottom), top))[1]
    return _End(text, _LEFT + _ACROSS, height, style.colour, visible)


def _draw_scheme(axes: Axes, line: Line, style: Style) -> _End:
    if any(high > low for low, high in zip(line.low, line.high, strict=True)):
        axes.fill_between(
            line.sizes, line.low, line.high, color=style.colour, alpha=0.2, linewidth=0
        )
    if len(line.sizes) > 1:
        draw_line(axes, line.sizes, line.value, style)
        axes.plot(line.sizes, line.value, "o", color=style.colour, markersize=2.4, zorder=3)
    left, right = axes.get_xlim()
    if line.chosen is not None and left <= line.chosen[0] <= right:
        size = 11 if style.marker == "*" else 7.5
        draw_markers(axes, line.chosen[:1], line.chosen[1:], style, size=size, edge=1.0)
    across, up = _to_pixels(axes, line.sizes[-1], line.value[-1])
    return _End(line.label, min(across, _LEFT + _ACROSS), up, style.colour)


def _to_pixels(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Where a point is, in pixels from the lower left corner of the sheet."""
    across, up = axes.transData.transform((x, y))
    return float(across), float(up)


def _name_ends(axes: Axes, ends: Sequence[_End]) -> None:
    """Write names to the right of the axes, apart, each joined to its line's end."""
    edge = _LEFT + _ACROSS
    ordered = sorted(ends, key=lambda end: end.y)
    bottom = _to_pixels(axes, axes.get_xlim()[0], axes.get_ylim()[0])[1]
    heights = move_apart([end.y for end in ordered], bottom, bottom + _DOWN)
    to_axes = axes.transAxes.inverted()
    for end, height in zip(ordered, heights, strict=True):
        joint = [to_axes.transform(at) for at in ((end.x, end.y), (edge + 10, height))]
        if end.joined:
            axes.plot(
                *zip(*joint, strict=True), color=end.colour, linewidth=0.6, alpha=0.55,
                transform=axes.transAxes, clip_on=False, zorder=1,
            )  # fmt: skip
        across, up = to_axes.transform((edge + 13, height))
        axes.text(
            across, up, clean_name(end.text),
            transform=axes.transAxes, color=end.colour, va="center_baseline", ha="left",
        )  # fmt: skip


def _format_size(value: float) -> str:
    """Label a tick of floats: `10 k`, `1 M`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}\u202f{letter}"
    return f"{value:g}"


def draw_norms(
    norms: Mapping[str, float],
    positions: Mapping[str, LayerPosition],
    colour: str,
    axis: tuple[Limits, Limits],
    *,
    xlabel: str,
    title: str,
    name: str,
) -> Markup:
    """Draw operator norms by depth, a line for each kind of layer."""
    (first, last), heights = axis
    kinds: dict[str, list[tuple[float, float]]] = {}
    for key, norm in norms.items():
        depth = positions[key].depth
        x = last + 1 if depth is None else float(depth)
        kinds.setdefault(positions[key].kind, []).append((x, norm))
    outside = any(position.depth is None for position in positions.values())
    with drawing():
        widths = (first - 0.3, last + 0.3 + outside)
        figure, axes = _start_axes((widths, heights), xlabel, "operator norm")
        step = max(1, round((last - first + 1) / 8))
        ticks = list(range(int(first), int(last) + 1, step))
        axes.set_xticks([*ticks, last + 1] if outside else ticks)
        axes.set_xticklabels([*map(str, ticks), *["none"] * outside])
        ends = []
        for (kind, rows), marker, dash in zip(
            kinds.items(), cycle(_MARKERS), cycle(_DASHES), strict=False
        ):
            xs, ys = zip(*sorted(rows), strict=True)
            style = Style(colour, marker, dash)
            draw_line(axes, xs, ys, style)
            draw_markers(axes, xs, ys, style, size=5)
            text = kind if len(kind) <= _LONGEST else "…" + kind[1 - _LONGEST :]
            ends.append(_End(text, *_to_pixels(axes, xs[-1], ys[-1]), colour))
        axes.spines["bottom"].set_color(SOFT)
        _name_ends(axes, ends)
        return inline(figure, name, title)
