"""Figures of a ramping study: scores against size, and norms by layer.

Lines carry their names at their right ends; names are moved apart where they would meet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, ScalarFormatter

from smidgen.report.drawing.palette import PAPER, SOFT, Style
from smidgen.report.drawing.svg import drawing, inline, sheet
from smidgen.report.names import shorten_method
from smidgen.report.one_record.figures import draw_line, place_axes, plain_name, tidy
from smidgen.report.ramp.layers import Place

_WIDTH, _HEIGHT = 384.0, 258.0
_LEFT, _TOP, _ACROSS, _DOWN = 70.0, 10.0, 214.0, 204.0
_BETWEEN = 13.0
_STEPS = (1, 2, 2.5, 5, 10)
# A level this many times as far away as all the points together is named, not drawn.
_FAR = 1.0
_LONGEST = 16
# Below this ratio of its ends an axis of floats has ticks at 3, 30 and so on too.
_FEW_DECADES = 10**2.6
_DECADE = 10.0
_MARKERS = "os^vD*"
_DASHES = ((), (5.0, 1.6), (2.0, 1.2), (6.0, 1.6, 1.2, 1.6), (1.2, 1.2))


@dataclass(frozen=True)
class Line:
    """One scheme: floats across, a score up, and how far its repeats spread.

    Args:
        scheme: Name of the scheme.
        label: Its name as people read it, short.
        floats: Floats stored, ascending.
        value: The score of each, the mean over repeats.
        low: The lowest over repeats.
        high: The highest over repeats.
        chosen: Floats and score of the chosen point.
    """

    scheme: str
    label: str
    floats: tuple[float, ...]
    value: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    chosen: tuple[float, float] | None


@dataclass(frozen=True)
class _End:
    """A name to be written at the right, joined to where its line ends, in pixels."""

    text: str
    x: float
    y: float
    colour: str
    joined: bool = True


def lines(ramp: Mapping[str, Any], score: str) -> list[Line]:
    """Gather the points of a study into a line for each scheme.

    Args:
        ramp: The validation curves of a record.
        score: "nll" or "ece".

    Returns:
        The lines, in the order of the points.
    """
    points = ramp["points"]
    found = []
    for scheme in dict.fromkeys(point["scheme"] for point in points):
        levels: dict[float, list[Mapping[str, Any]]] = {}
        for point in points:
            if point["scheme"] == scheme:
                levels.setdefault(point["level"], []).append(point)
        rows = sorted(_summed(group, score) for group in levels.values())
        place = ramp["chosen"].get(scheme)
        own = None if place is None else points[place]
        floats, value, low, high = (tuple(each) for each in zip(*rows, strict=True))
        chosen = own and (own["floats"], own[score])
        label = shorten_method(scheme)
        found.append(Line(scheme, label, floats, value, low, high, chosen))
    return found


def _summed(
    group: Sequence[Mapping[str, Any]], score: str
) -> tuple[float, float, float, float]:
    values = [point[score] for point in group]
    floats = sum(point["floats"] for point in group) / len(group)
    return floats, sum(values) / len(values), min(values), max(values)


def float_limits(drawn: Sequence[Line]) -> tuple[float, float]:
    """Find the ends of an axis of floats that shows every line."""
    floats = [max(1.0, x) for line in drawn for x in line.floats]
    floats += [max(1.0, line.chosen[0]) for line in drawn if line.chosen]
    return min(floats) / 1.25, max(floats) * 1.25


def score_limits(drawn: Sequence[Line], levels: Mapping[str, float]) -> tuple[float, float]:
    """Find the ends of an axis that shows every line, and levels that are not far away.

    Args:
        drawn: The lines.
        levels: Scores of the baselines.

    Returns:
        The ends.
    """
    values = [y for line in drawn for y in (*line.low, *line.high)]
    low, high = min(values), max(values)
    spread = max(high - low, 1e-3 * abs(high), 1e-9)
    near = (low - _FAR * spread, high + _FAR * spread)
    values += [level for level in levels.values() if near[0] <= level <= near[1]]
    low, high = min(values), max(values)
    room = 0.06 * max(high - low, spread)
    return low - room, high + room


def score_figure(
    drawn: Sequence[Line],
    levels: Mapping[str, float],
    looks: Mapping[str, Style],
    axis: tuple[tuple[float, float], tuple[float, float]],
    *,
    ylabel: str,
    name: str,
    xlabel: str = "floats stored",
) -> str:
    """Draw a score against the floats stored, or another size.

    Args:
        drawn: The lines.
        levels: Scores of the baselines by name, drawn level across.
        looks: How each is drawn.
        axis: The ends of the floats and of the score.
        ylabel: What the score is.
        name: A name for the figure that no other has.
        xlabel: What stands across.

    Returns:
        The SVG.
    """
    with drawing():
        figure = sheet(_WIDTH, _HEIGHT)
        axes = place_axes(figure, left=_LEFT, top=_TOP, width=_ACROSS, height=_DOWN)
        axes.set_xscale("log")
        axes.set_xlim(*axis[0])
        axes.set_ylim(*axis[1])
        across = axis[0][1] / axis[0][0]
        ticks = LogLocator(subs=(1, 3) if across < _FEW_DECADES else (1,), numticks=6)
        # Within a decade powers of ten may all be outside.
        axes.xaxis.set_major_locator(MaxNLocator(3) if across < _DECADE else ticks)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda x, _: _short_count(x))
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=_STEPS))
        axes.yaxis.set_major_formatter(_decimals())
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel, labelpad=4)
        tidy(axes)
        ends = [_level(axes, level, key, looks[key]) for key, level in levels.items()]
        ends += [_drawn(axes, line, looks[line.scheme]) for line in drawn]
        _name_ends(axes, ends)
        return inline(figure, name, f"{ylabel} against {xlabel}")


def _level(axes: Axes, level: float, key: str, look: Style) -> _End:
    """Draw a baseline across; one beyond the axis is only named, with its value."""
    bottom, top = axes.get_ylim()
    text = {"map": "MAP", "temperature": "Temperature"}.get(key, key)
    seen = bottom <= level <= top
    if seen:
        draw_line(axes, list(axes.get_xlim()), [level, level], look)
    else:
        text += f" {level:.3f} {'↑' if level > top else '↓'}"
    height = _pixels(axes, 1.0, min(max(level, bottom), top))[1]
    return _End(text, _LEFT + _ACROSS, height, look.colour, seen)


def _drawn(axes: Axes, line: Line, look: Style) -> _End:
    if any(high > low for low, high in zip(line.low, line.high, strict=True)):
        axes.fill_between(
            line.floats, line.low, line.high, color=look.colour, alpha=0.2, linewidth=0
        )
    if len(line.floats) > 1:
        draw_line(axes, line.floats, line.value, look)
        axes.plot(line.floats, line.value, "o", color=look.colour, markersize=2.4, zorder=3)
    left, right = axes.get_xlim()
    if line.chosen is not None and left <= line.chosen[0] <= right:
        big = 11 if look.marker == "*" else 7.5
        axes.plot(
            [line.chosen[0]], [line.chosen[1]], look.marker, color=look.colour,
            markersize=big, markeredgecolor=PAPER, markeredgewidth=1.0, zorder=5,
            clip_on=False,
        )  # fmt: skip
    across, up = _pixels(axes, line.floats[-1], line.value[-1])
    return _End(line.label, min(across, _LEFT + _ACROSS), up, look.colour)


def _pixels(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Where a point is, in pixels from the lower left corner of the sheet."""
    across, up = axes.transData.transform((x, y))
    return float(across), float(up)


def _name_ends(axes: Axes, ends: Sequence[_End]) -> None:
    """Write names to the right of the axes, apart, each joined to its line's end."""
    figure = axes.get_figure()
    assert figure is not None
    edge = _LEFT + _ACROSS
    ordered = sorted(ends, key=lambda end: end.y)
    bottom = float(_pixels(axes, *_corner(axes))[1])
    heights = _apart([end.y for end in ordered], bottom, bottom + _DOWN)
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
            across, up, plain_name(end.text),
            transform=axes.transAxes, color=end.colour, va="center_baseline", ha="left",
        )  # fmt: skip


def _corner(axes: Axes) -> tuple[float, float]:
    return float(axes.get_xlim()[0]), float(axes.get_ylim()[0])


def _apart(wanted: Sequence[float], bottom: float, top: float) -> list[float]:
    """Move ascending heights apart, as little as one sweep up and one down can."""
    between = min(_BETWEEN, (top - bottom) / max(1, len(wanted) - 1))
    found: list[float] = []
    for height in wanted:
        least = found[-1] + between if found else bottom
        found.append(max(height, least))
    ceiling = top
    for place in reversed(range(len(found))):
        found[place] = min(found[place], ceiling)
        ceiling = found[place] - between
    return found


def _decimals() -> ScalarFormatter:
    """Label all ticks of an axis with as many decimals."""
    formatter = ScalarFormatter(useOffset=False)
    formatter.set_scientific(False)
    return formatter


def _short_count(value: float) -> str:
    """Label a tick of floats: `10 k`, `1 M`."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}\u202f{letter}"
    return f"{value:g}"


def norm_figure(
    norms: Mapping[str, float],
    where: Mapping[str, Place],
    colour: str,
    axis: tuple[tuple[float, float], tuple[float, float]],
    *,
    xlabel: str,
    title: str,
    name: str,
) -> str:
    """Draw operator norms by layer, a line for each kind of layer.

    Args:
        norms: The norm of each layer.
        where: The kind and the layer of each layer.
        colour: Of all lines; markers and dashes tell them apart.
        axis: The ends of layers and of norms; one past the last layer is for layers that
            belong to none.
        xlabel: What stands across.
        title: What a screen reader says.
        name: A name for the figure that no other has.

    Returns:
        The SVG.
    """
    kinds: dict[str, list[tuple[float, float]]] = {}
    (first, last), (low, high) = axis
    for key, norm in norms.items():
        layer = where[key].layer
        x = last + 1 if layer is None else float(layer)
        kinds.setdefault(where[key].kind, []).append((x, norm))
    outside = any(place.layer is None for place in where.values())
    with drawing():
        figure = sheet(_WIDTH, _HEIGHT)
        axes = place_axes(figure, left=_LEFT, top=_TOP, width=_ACROSS, height=_DOWN)
        axes.set_xlim(first - 0.3, last + 0.3 + outside)
        axes.set_ylim(low, high)
        step = max(1, round((last - first + 1) / 8))
        ticks = list(range(int(first), int(last) + 1, step))
        axes.set_xticks([*ticks, last + 1] if outside else ticks)
        axes.set_xticklabels([*map(str, ticks), *["none"] * outside])
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=_STEPS))
        axes.yaxis.set_major_formatter(_decimals())
        axes.set_xlabel(xlabel)
        axes.set_ylabel("operator norm", labelpad=4)
        tidy(axes)
        ends = []
        styles = zip(kinds.items(), cycle(_MARKERS), cycle(_DASHES), strict=False)
        for (kind, rows), marker, dash in styles:
            xs, ys = zip(*sorted(rows), strict=True)
            draw_line(axes, xs, ys, Style(colour, marker, dash))
            axes.plot(
                xs, ys, marker, color=colour, markersize=5, markeredgecolor=PAPER,
                markeredgewidth=0.6, zorder=3, clip_on=False,
            )  # fmt: skip
            text = kind if len(kind) <= _LONGEST else "…" + kind[1 - _LONGEST :]
            ends.append(_End(text, *_pixels(axes, xs[-1], ys[-1]), colour))
        axes.spines["bottom"].set_color(SOFT)
        _name_ends(axes, ends)
        return inline(figure, name, title)
