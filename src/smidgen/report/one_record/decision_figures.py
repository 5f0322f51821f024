"""Figures of decisions: a regression's intervals against the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from smidgen.report.drawing.axes import (
    STEPS,
    clean_name,
    draw_reference,
    pad_limits,
    place_axes,
)
from smidgen.report.drawing.palette import PAPER, Style
from smidgen.report.drawing.svg import drawing, inline, sheet

_WIDTH, _HEIGHT = 360.0, 300.0
_MISSED = "#d55e00"


def draw_against_truth(
    outputs: Sequence[Mapping[str, Any]], style: Style
) -> list[tuple[str, Markup]]:
    """Draw each interval over its true value, a figure for each output, by its name."""
    return [
        (clean_name(str(output["name"])), _draw_output(output, style, f"truth-{place}"))
        for place, output in enumerate(outputs)
    ]


def _draw_output(output: Mapping[str, Any], style: Style, name: str) -> Markup:
    truth, low, high = (output[key] for key in ("truth", "low", "high"))
    rows = list(zip(truth, output["mean"], low, high, strict=True))
    with drawing():
        figure = sheet(_WIDTH, _HEIGHT)
        axes = place_axes(figure, left=58, top=8, width=286, height=250)
        limits = pad_limits(truth)
        draw_reference(axes, limits, limits)
        # What an interval misses is drawn last, so that no other hides it.
        for colour, missed in ((style.colour, False), (_MISSED, True)):
            some = [row for row in rows if (not row[2] <= row[0] <= row[3]) is missed]
            at = [row[0] for row in some]
            ends = ([row[2] for row in some], [row[3] for row in some])
            axes.vlines(at, *ends, colour, linewidth=1.3, alpha=0.9 if missed else 0.45)
            axes.scatter(
                at, [row[1] for row in some], s=13, color=colour,
                marker="o", edgecolors=PAPER, linewidths=0.4, zorder=3,
            )  # fmt: skip
        axes.set_xlim(*limits)
        axes.set_ylim(*pad_limits([*low, *high, *truth]))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5, steps=STEPS))
            axis.set_major_formatter(lambda x, _: f"{x:.4g}".replace("-", "−"))
        axes.set_xlabel("true value")
        axes.set_ylabel("predicted, with its interval")
        axes.grid(True)
        axes.set_axisbelow(True)
        return inline(figure, name, "Intervals of the predictions against the true values")
