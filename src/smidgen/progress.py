"""A progress bar without a dependency: late, quiet when piped, silent when asked.

Ask with `progress=False`, or for a whole process with SMIDGEN_PROGRESS=0.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TypeVar

Item = TypeVar("Item")

SWITCH = "SMIDGEN_PROGRESS"
"""The environment variable that silences all bars when it is 0."""

# A bar that flashes by is noise: it appears once the work has taken this long.
_DELAY_SECONDS = 1.0
_REFRESH_SECONDS = 0.1
_WIDTH = 24


def track(
    items: Iterable[Item],
    label: str | Callable[[], str],
    *,
    total: int | None = None,
    show: bool = True,
) -> Iterator[Item]:
    """Yield the items and draw how many have passed, on a terminal's error stream.

    Args:
        items: Anything iterable, also without a length.
        label: What is being done, as a gerund: "fitting"; or what gives it anew.
        total: How many items there will be, if the iterable does not know.
        show: Draw nothing when false.

    Yields:
        The items, unchanged.
    """
    if not show or os.environ.get(SWITCH) == "0" or not sys.stderr.isatty():
        yield from items
        return
    if total is None:
        total = length_of(items)
    start = last = time.monotonic()
    drawn = False
    try:
        for count, item in enumerate(items, 1):
            yield item
            now = time.monotonic()
            if now - start > _DELAY_SECONDS and now - last > _REFRESH_SECONDS:
                said = label if isinstance(label, str) else label()
                sys.stderr.write("\r" + _line(said, count, total, now - start))
                sys.stderr.flush()
                last, drawn = now, True
    finally:
        if drawn:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def length_of(items: Iterable[object]) -> int | None:
    """How many items there are, where that is known."""
    try:
        return len(items) if isinstance(items, Sized) else None
    except TypeError:
        # A torch loader over a stream has a length only to say that it has none.
        return None


def _line(label: str, count: int, total: int | None, seconds: float) -> str:
    if not total:
        return f"{label}: {count} done, {seconds:.0f} s\x1b[K"
    share = min(1.0, count / total)
    full = round(share * _WIDTH)
    bar = "━" * full + "╌" * (_WIDTH - full)
    left = seconds * (1 - share) / share
    return f"{label} {bar} {count}/{total}, {left:.0f} s left\x1b[K"
