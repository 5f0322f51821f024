"""How chains over the weights went: their traces and their diagnostics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from smidgen.report import fields
from smidgen.report.drawing.axes import (
    WHOLE_STEPS,
    draw_line,
    keep_level_grid,
    place_axes,
    set_log_ticks,
)
from smidgen.report.drawing.palette import Style
from smidgen.report.drawing.svg import drawing, inline, legend_marker, sheet
from smidgen.runtime.record import Record

_TRACES = {
    "nll": "NLL of a batch",
    "scale": "mean scale λ",
    "displacement": "mean displacement |Δ|",
}
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00")
_DASHES = ((), (4.5, 1.8), (1.4, 1.0))


@dataclass(frozen=True)
class Chains:
    """What a page shows of chains: a figure per trace, a legend, and diagnostics."""

    figures: dict[str, Markup]
    legend: list[tuple[Markup, str]]
    rows: list[dict[str, Any]]


def describe_chains(records: Sequence[Record], name: str) -> Chains | None:
    """Draw the chains of records of one data set, those of one kind of cell alike."""
    chains = [
        (str(record.config.get("cell", "chain")), record.seed, chain)
        for record in records
        if (chain := fields.read_part(record, "chain") or {}).get("traces")
    ]
    if not chains:
        return None
    kinds = dict.fromkeys(kind for kind, _, _ in chains)
    styles = {kind: _choose_style(index) for index, kind in enumerate(kinds)}
    lines = [(styles[kind], chain["traces"]) for kind, _, chain in chains]
    return Chains(
        {
            text: _draw_traces(lines, trace, text, f"{name}-{trace}")
            for trace, text in _TRACES.items()
        },
        [(legend_marker(style, marker=False), kind) for kind, style in styles.items()],
        [{"name": f"{kind}, seed {seed}", **chain} for kind, seed, chain in chains],
    )


def _choose_style(index: int) -> Style:
    """Draw every colour once unbroken, then dashed, then dotted."""
    again, colour = divmod(index, len(_COLOURS))
    return Style(_COLOURS[colour], "o", _DASHES[again % len(_DASHES)])


def _draw_traces(
    lines: Sequence[tuple[Style, Sequence[Mapping[str, float]]]],
    trace: str,
    text: str,
    name: str,
) -> Markup:
    with drawing():
        figure = sheet(240, 200)
        axes = place_axes(figure, left=46, top=18, width=186, height=142)
        for style, samples in lines:
            steps = [sample["step"] for sample in samples]
            draw_line(axes, steps, [sample[trace] for sample in samples], style)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        values = [sample[trace] for _, samples in lines for sample in samples]
        if trace != "nll" and max(values) >= 10 * min(values) > 0:
            # Chains that move by other rules differ by powers of ten.
            axes.set_yscale("log")
            set_log_ticks(axes.yaxis, 5)
        else:
            axes.yaxis.set_major_locator(MaxNLocator(4, steps=WHOLE_STEPS))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("step")
        keep_level_grid(axes)
        return inline(figure, name, f"{text} along the chain")
