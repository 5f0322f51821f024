"""What a chain over the weights looked like, on the terminal."""

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
    """Print the traces, the check of the prior, and how much the halves agree.

    Args:
        scales: What the chain found.
        fraction: The share of the weights that was chosen.
    """
    traces = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2))
    for heading in ("along the chain", "first", "last", ""):
        traces.add_column(heading, justify="left" if not heading else "right")
    for name, values in (
        ("NLL of a batch", [each.nll for each in scales.traces]),
        ("mean scale", [each.scale for each in scales.traces]),
        ("mean displacement", [each.displacement for each in scales.traces]),
    ):
        traces.add_row(name, f"{values[0]:.3g}", f"{values[-1]:.3g}", _picture(values))
    out.print(traces)
    check = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2))
    for heading in ("weights beyond", "found", "foreseen", "stated prior"):
        check.add_column(heading, justify="right")
    for row in scales.check:
        shares = (row.chain, row.prior, row.stated)
        check.add_row(f"{row.distance:g}", *(f"{each:.1%}" for each in shares))
    out.print(check)
    verdict = "rejected" if scales.acceptance < _REJECTED else "accepted"
    out.print(
        f"  acceptance of the prior that is sampled {scales.acceptance:.2f} ({verdict})\n"
        f"  halves of the chain agree on {scales.overlap(fraction):.0%}, by chance on "
        f"{scales.chance(fraction):.1%}"
    )


def _picture(values: Sequence[float]) -> str:
    """Draw a trace in one line, at most so wide."""
    shown = values[:: -(-len(values) // _WIDTH)]
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    return "".join(_BARS[int((each - low) / span * (len(_BARS) - 1))] for each in shown)
