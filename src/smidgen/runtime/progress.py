"""A progress bar without a dependency, which appears only if the work takes a while.

Silence it with `progress=False`, or for a whole process with SMIDGEN_PROGRESS=0. In a
notebook it is an output of its cell, drawn anew in its place and empty at the end.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TypeVar

from smidgen.runtime.showing.notebook import NotebookLine, find_kernel_display

Item = TypeVar("Item")

SWITCH = "SMIDGEN_PROGRESS"
"""The environment variable that silences all bars when it is 0."""

# A bar that flashes by is noise: it appears once the work has taken this long.
_DELAY_SECONDS = 1.0
_REFRESH_SECONDS = 0.1
# Each drawing in a notebook is a message to the browser.
_NOTEBOOK_SECONDS = 0.5
_LOG_SECONDS = 60.0
_WIDTH = 24


def track(
    items: Iterable[Item],
    label: str | Callable[[], str],
    *,
    total: int | None = None,
    show: bool = True,
) -> Iterator[Item]:
    """Yield the items and show progress: a bar, or one line a minute in a log on stderr."""
    if not show or os.environ.get(SWITCH) == "0":
        yield from items
        return
    if total is None:
        total = count_batches(items)
    surface = _find_surface()
    start = last = time.monotonic()
    drawn = False
    try:
        for count, item in enumerate(items, 1):
            yield item
            now = time.monotonic()
            if now - start > surface.delay and now - last > surface.refresh:
                text = label if isinstance(label, str) else label()
                surface.draw(_line(text, count, total, now - start, bar=surface.bar))
                last, drawn = now, True
    finally:
        if drawn:
            surface.clear()


class _Log:
    """Lines, far apart, that stay."""

    delay = refresh = _LOG_SECONDS
    bar = False

    def draw(self, line: str) -> None:
        """Show how far it is."""
        self._write(f"{line}\n")

    def clear(self) -> None:
        """Take away what would be left."""

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


class _Terminal(_Log):
    """One line, written over itself."""

    delay, refresh, bar = _DELAY_SECONDS, _REFRESH_SECONDS, True

    def draw(self, line: str) -> None:
        self._write(f"\r{line}\x1b[K")

    def clear(self) -> None:
        self._write("\r\x1b[2K")


class _Notebook(_Log):
    """One output of the cell, drawn anew in its place."""

    delay, refresh, bar = _DELAY_SECONDS, _NOTEBOOK_SECONDS, True

    def __init__(self, line: NotebookLine) -> None:
        self._line = line

    def draw(self, line: str) -> None:
        self._line.show(line)

    def clear(self) -> None:
        self._line.show("")


def _find_surface() -> _Log:
    display = find_kernel_display()
    if display is not None:
        return _Notebook(NotebookLine(display))
    return _Terminal() if sys.stderr.isatty() else _Log()


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
