"""A progress bar without a dependency, which appears only if the work takes a while.

Silence it with `progress=False`, or for a whole process with SMIDGEN_PROGRESS=0.
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
_LOG_SECONDS = 60.0
_WIDTH = 24


def track(
    items: Iterable[Item],
    label: str | Callable[[], str],
    *,
    total: int | None = None,
    show: bool = True,
) -> Iterator[Item]:
    """Yield the items and show progress on stderr: a bar, or one line a minute in a log."""
    if not show or os.environ.get(SWITCH) == "0":
        yield from items
        return
    if total is None:
        total = count_batches(items)
    terminal = sys.stderr.isatty()
    delay = _DELAY_SECONDS if terminal else _LOG_SECONDS
    refresh = _REFRESH_SECONDS if terminal else _LOG_SECONDS
    start = last = time.monotonic()
    drawn = False
    try:
        for count, item in enumerate(items, 1):
            yield item
            now = time.monotonic()
            if now - start > delay and now - last > refresh:
                text = label if isinstance(label, str) else label()
                line = _line(text, count, total, now - start, bar=terminal)
                sys.stderr.write(f"\r{line}\x1b[K" if terminal else f"{line}\n")
                sys.stderr.flush()
                last, drawn = now, True
    finally:
        if drawn and terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()


def count_batches(items: Iterable[object]) -> int | None:
    """Count the items without reading them; None if that cannot be known."""
    try:
        return len(items) if isinstance(items, Sized) else None
    except TypeError:
        # A torch loader over a stream has a length only to say that it has none.
        return None


def _line(label: str, count: int, total: int | None, seconds: float, *, bar: bool) -> str:
    if not total:
        return f"{label}: {count} done, {seconds:.0f} s"
    fraction = min(1.0, count / total)
    full = round(fraction * _WIDTH)
    drawn = " " + "━" * full + "╌" * (_WIDTH - full) if bar else ":"
    left = seconds * (1 - fraction) / fraction
    return f"{label}{drawn} {count}/{total}, {left:.0f} s left"
