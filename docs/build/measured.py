"""What tables of measurements share: a bench's record, ratios, targets and verdicts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

from docs.build.committed import note_unmeasured, read_bench

from smidgen.report.many_records.aggregate import FEWEST, LEVEL, SeedMean
from smidgen.report.many_records.verdicts import adjust_by_holm
from smidgen.runtime.record import Record

_Key = TypeVar("_Key")
DASH = "–"
_BAR = re.compile(r"(?<!\\)\|")


def of_bench(name: str, *keys: str) -> Callable[..., Callable[[], str]]:
    """Give a table the record of a bench, or put a sentence in its place.

    Args:
        name: The bench.
        keys: What its results must hold; a record without one of them is of older code.

    Returns:
        Makes a function without arguments of one that takes the record.
    """

    def wrap(write: Callable[[Record], str]) -> Callable[[], str]:
        @wraps(write)
        def table() -> str:
            record = read_bench(name, *keys)
            return note_unmeasured(name) if record is None else write(record)

        return table

    return wrap


def judge(
    value: float,
    target: float,
    *,
    least: bool = False,
    amount: Callable[[float], str] | None = None,
) -> str:
    """Say whether a target is met or missed, and by how much, in the same words.

    Args:
        value: What was measured.
        target: What it should be: at most, or at least.
        least: Whether the target is the least.
        amount: Writes a difference; by default it is a percentage of the target.

    Returns:
        Such as `met, 3 % below` or `missed, 0.2 ms above`.
    """
    if value == target:
        return "met, just"
    above = value > target
    if amount is None:
        percent = 100 * abs(value / target - 1)
        gap = f"{percent:,.0f} %" if percent >= 10 else f"{percent:.2g} %"
    else:
        gap = amount(abs(value - target))
    return f"{'met' if above == least else 'missed'}, {gap} {'above' if above else 'below'}"


def make_rows(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Write a table of Markdown, line by line."""
    lines = [_join_cells(heads), "|---" * len(heads) + "|"]
    return lines + [_join_cells(row) for row in rows]


def _join_cells(cells: Iterable[str]) -> str:
    # A name may hold a bar of its own.
    escaped = (_BAR.sub(r"\\|", cell) for cell in cells)
    return f"| {' | '.join(escaped)} |"


def find_clear(gaps: Mapping[_Key, SeedMean]) -> set[_Key]:
    """Find the differences of a table that are clear after correction for all of them.

    Args:
        gaps: The differences, by what they are of.

    Returns:
        Those that Holm's rule leaves, of three seeds or more.
    """
    # Of equal scores nothing is clear, though their interval has no width.
    chances = [1.0 if gap.chance is None else gap.chance for gap in gaps.values()]
    adjusted = adjust_by_holm(chances)
    return {
        key
        for (key, gap), chance in zip(gaps.items(), adjusted, strict=True)
        if chance < 1 - LEVEL and gap.count >= FEWEST and gap.value
    }


def write_ratio(value: float) -> str:
    """Write a ratio with what a verdict on it needs: `1.048×`, `23.4×`, `160×`."""
    places = 3 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{places}f}×"


def write_target(value: float) -> str:
    """Write the ratio that a target asks for, as short as it is: `1.05×`."""
    return f"{value:g}×"


def judge_cells(
    value: float,
    target: float | None,
    write: Callable[[float], str],
    **how: Any,
) -> list[str]:
    """The cells of a target and of its verdict; without a target, two dashes."""
    if target is None:
        return [DASH, DASH]
    sign = "≥" if how.get("least") else "≤"
    return [f"{sign} {write(target)}", judge(value, target, **how)]


def write_megabytes(size: float) -> str:
    """Write bytes as megabytes: `94`, `1.2`."""
    return f"{size / 1e6:,.0f}" if size >= 1e7 else f"{size / 1e6:.1f}"


def name_threads(config: Mapping[str, Any]) -> str:
    """Name the number of threads that a bench had."""
    count = config["threads"]
    return f"{count} thread{'s' * (count != 1)}"
