"""Printing a chain over the weights to the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from smidgen.cli.console import out

if TYPE_CHECKING:
    from smidgen.fit import Scales

_BARS = "▁▂▃▄▅▆▇█"
_REJECTED = 0.5
_WIDTH = 40


def show_chain(scales: Scales, fraction: float) -> None:
    """Print the traces, the check of the prior, and how well the two halves agree."""
    traces = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2))
    for heading in ("along the chain", "first", "last", ""):
        traces.add_column(heading, justify="left" if not heading else "right")
    for name, values in (
        ("NLL of a batch", [step.nll for step in scales.traces]),
        ("mean scale", [step.scale for step in scales.traces]),
        ("mean displacement", [step.displacement for step in scales.traces]),
    ):
        traces.add_row(name, f"{values[0]:.3g}", f"{values[-1]:.3g}", _draw_line(values))
    out.show(traces)
    check = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2))
    for heading in ("moved farther than", "weights", "expected", "stated prior"):
        check.add_column(heading, justify="right")
    for row in scales.check:
        fractions = (row.chain, row.prior, row.stated)
        check.add_row(f"{row.distance:g}", *(f"{value:.1%}" for value in fractions))
    out.show(check)
    verdict = "rejected" if scales.acceptance < _REJECTED else "accepted"
    out.print(
        f"  acceptance under the sampled prior {scales.acceptance:.2f} ({verdict})\n"
        f"  both halves of the chain choose {scales.overlap(fraction):.0%} of the same "
        f"weights ({scales.chance(fraction):.1%} by chance)"
    )


def _draw_line(values: Sequence[float]) -> str:
    """Draw a trace as one line of bars."""
    shown = values[:: -(-len(values) // _WIDTH)]
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    return "".join(_BARS[int((value - low) / span * (len(_BARS) - 1))] for value in shown)
