"""What all figures share: axes placed by pixels, limits, ticks, lines and whiskers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, ScalarFormatter

from smidgen.report.drawing.palette import FAINT, PAPER, SOFT, Style
from smidgen.report.formats import shorten_text

STEPS = (1, 2, 2.5, 5, 10)
# In small figures ticks must be short: 0.4 and 0.6, not 0.25.
WHOLE_STEPS = (1, 2, 5, 10)
# Lines of names at the ends of lines are this many pixels apart.
BETWEEN = 13.0
_REFERENCE: dict[str, Any] = {"color": SOFT, "linewidth": 0.9, "dashes": (3, 2.5)}
_LONGEST_NAME = 44


def place_axes(
    figure: Figure, *, left: float, top: float, width: float, height: float
) -> Axes:
    """Place axes by pixels from the upper left corner."""
    wide, tall = figure.get_size_inches() * figure.dpi
    bottom = tall - top - height
    return figure.add_axes((left / wide, bottom / tall, width / wide, height / tall))


def draw_line(axes: Axes, x: Sequence[float], y: Sequence[float], style: Style) -> None:
    """Draw a line as its method is drawn everywhere."""
    dash: Any = (0, style.dash) if style.dash else "solid"
    axes.plot(x, y, color=style.colour, linewidth=1.7, linestyle=dash)


def draw_reference(axes: Axes, x: Sequence[float], y: Sequence[float]) -> None:
    """Draw a faint dashed line to compare with."""
    axes.plot(x, y, **_REFERENCE)


def draw_markers(
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    style: Style,
    *,
    size: float = 6.0,
    edge: float = 0.6,
    marker: str | None = None,
) -> None:
    """Draw the markers of a method with a rim of paper, over everything else."""
    axes.plot(
        x, y, marker or style.marker, color=style.colour, markersize=size,
        markeredgecolor=PAPER, markeredgewidth=edge, zorder=5, clip_on=False,
    )  # fmt: skip


def draw_whisker(
    axes: Axes, y: float, value: float, ends: tuple[float, float] | None, style: Style
) -> None:
    """Draw a value and its interval on the row at height y."""
    if ends is not None:
        axes.hlines(y, *ends, style.colour, linewidth=1.6)
    draw_markers(axes, [value], [y], style)


def set_rows(
    axes: Axes, rows: int, limits: tuple[float, float], reference: float, ticks: int
) -> None:
    """Prepare axes for one interval in each row, from top to bottom."""
    axes.axvline(reference, **_REFERENCE)
    axes.set_xlim(*limits)
    axes.set_ylim(rows, 0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(ticks, steps=STEPS))
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:.3g}".replace("-", "−"))
    axes.grid(True, axis="x")
    axes.set_axisbelow(True)


def set_log_ticks(axis: Axis, count: int, subs: Sequence[float] = (1.0,)) -> None:
    """Put ticks at powers of ten, and at multiples of them."""
    axis.set_major_locator(LogLocator(subs=tuple(subs), numticks=count))
    axis.set_minor_locator(NullLocator())


def set_decimal_ticks(axis: Axis, count: int = 6) -> None:
    """Put round ticks on an axis, all with as many decimals."""
    formatter = ScalarFormatter(useOffset=False)
    formatter.set_scientific(False)
    axis.set_major_locator(MaxNLocator(count, steps=STEPS))
    axis.set_major_formatter(formatter)


def keep_level_grid(axes: Axes) -> None:
    """Leave level grid lines and no left edge."""
    axes.grid(True, axis="y", color=FAINT)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def pad_limits(values: Iterable[float], padding: float = 0.06) -> tuple[float, float]:
    """Find the ends of an axis that shows all values, and a little more."""
    seen = list(values)
    low, high = min(seen), max(seen)
    room = padding * (high - low) or 0.05
    return low - room, high + room


def move_apart(heights: Sequence[float], bottom: float, top: float) -> list[float]:
    """Move ascending heights apart, as little as one sweep up and one down can."""
    between = min(BETWEEN, (top - bottom) / max(1, len(heights) - 1))
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + between if moved else bottom))
    ceiling = top
    for i in reversed(range(len(moved))):
        moved[i] = min(moved[i], ceiling)
        ceiling = moved[i] - between
    return moved


def clean_name(name: str) -> str:
    """Keep what XML can hold of a name from the user's data, and not too much of it."""
    text = "".join(letter for letter in str(name) if letter.isprintable())
    return shorten_text(text, _LONGEST_NAME)
