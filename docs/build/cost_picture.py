"""The picture of docs/performance.md: cost against the percentage of stochastic weights.

Both axes are logarithmic: a percentage spans two decades, and a ratio of two is as far below
the limit as above it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from docs.build.committed import read_bench
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from smidgen.report.drawing.axes import (
    draw_line,
    draw_markers,
    keep_level_grid,
    move_apart,
    place_axes,
)
from smidgen.report.drawing.palette import INK, Style
from smidgen.report.drawing.svg import drawing, inline, sheet

# Colours of Okabe and Ito; markers and dashes say the same again without colour.
SIDES = {
    "exact": ("predict, exact", Style("#d55e00", "s")),
    "low-rank": ("predict, low-rank (default)", Style("#0072b2", "D")),
    "isotropic": ("predict, isotropic", Style("#009e73", "^")),
    "fit": ("fit, its pass over data", Style("#882255", "o", (4.5, 1.8))),
}
HEADING = "time ÷ that of one forward and one activation-only backward pass, the limit"
_WIDTH, _HEIGHT = 610.0, 306.0
_LEFT, _TOP, _ACROSS, _DOWN = 40.0, 8.0, 360.0, 246.0
_TICKS = (0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 2, 3, 5, 10, 20, 50)
# Ticks nearer to each other than this many pixels are too many.
_APART = 24.0
_Found = Mapping[str, Mapping[str, float]]


def draw_percents(found: _Found) -> str:
    """Draw time over the limit against percentages.

    Args:
        found: For each percentage, each side's time over the limit.

    Returns:
        An SVG element.
    """
    percents = [float(percent) for percent in found]
    sides = {name: [each[name] for each in found.values()] for name in SIDES}
    seen = [value for values in sides.values() for value in values]
    with drawing():
        figure = sheet(_WIDTH, _HEIGHT)
        axes = place_axes(figure, left=_LEFT, top=_TOP, width=_ACROSS, height=_DOWN)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(min(percents) / 1.15, max(percents) * 1.15)
        axes.set_ylim(min(*seen, 1.0) / 1.06, max(*seen, 1.1) * 1.06)
        _set_ticks(axes, percents)
        axes.set_xlabel("rows and columns of every layer that are stochastic", labelpad=6)
        axes.axhline(1.0, color=INK, linewidth=1.0)
        for name, values in sides.items():
            style = SIDES[name][1]
            draw_line(axes, percents, values, style)
            draw_markers(axes, percents, values, style)
        _name_lines(axes, {name: values[-1] for name, values in sides.items()})
        return inline(figure, "cost", "Time over the limit against percentage")


def _set_ticks(axes: Axes, percents: Sequence[float]) -> None:
    axes.xaxis.set_major_locator(FixedLocator(percents))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g} %")
    low, high = axes.get_ylim()
    chosen = [1.0]
    # From the limit outwards, as many as have room.
    inside = [tick for tick in _TICKS if low <= tick <= high]
    for tick in sorted(inside, key=lambda tick: max(tick, 1 / tick)):
        heights = [axes.transData.transform((1, each))[1] for each in (tick, *chosen)]
        if all(abs(heights[0] - other) >= _APART for other in heights[1:]):
            chosen.append(tick)
    axes.yaxis.set_major_locator(FixedLocator(sorted(chosen)))
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}×")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    keep_level_grid(axes)


def _name_lines(axes: Axes, ends: Mapping[str, float]) -> None:
    """Write each line's last value and name beside its end, apart from the others."""
    # The limit's line reaches the edge, the others end at the last percentage.
    last, edge = axes.xaxis.get_majorticklocs()[-1], axes.get_xlim()[1]
    named = {name: (*SIDES[name], last, end) for name, end in ends.items()}
    named["limit"] = ("the limit", Style(INK, ""), edge, 1.0)
    right = axes.transAxes.transform((1, 0))[0]
    places = {
        name: axes.transData.transform((x, end)) for name, (*_, x, end) in named.items()
    }
    ordered = sorted(named, key=lambda name: places[name][1])
    bottom, top = (axes.transAxes.transform((1, y))[1] for y in (0, 1))
    heights = move_apart([places[name][1] for name in ordered], bottom, top)
    to_axes = axes.transAxes.inverted()
    for name, height in zip(ordered, heights, strict=True):
        label, style, _, end = named[name]
        joint = [to_axes.transform(at) for at in (places[name], (right + 12, height))]
        axes.plot(
            *zip(*joint, strict=True), color=style.colour, linewidth=0.6, alpha=0.55,
            transform=axes.transAxes, clip_on=False, zorder=1,
        )  # fmt: skip
        for text, x in ((f"{end:.2f}×", right + 46), (label, right + 54)):
            across, up = to_axes.transform((x, height))
            axes.text(
                across, up, text, transform=axes.transAxes, color=style.colour,
                va="center_baseline", ha="right" if "×" in text else "left",
            )  # fmt: skip


def read_percents() -> _Found | None:
    """Read what the bench `growth` found of percentages, if it has a record."""
    record = read_bench("growth", "percent")
    return None if record is None else record.results["percent"]
