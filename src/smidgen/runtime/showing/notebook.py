"""A line in a notebook's cell that can be drawn anew, where there is a notebook.

IPython is never imported: a kernel that runs this process has it loaded already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from smidgen.runtime.showing.html import format_html

Display = Callable[..., Any]


def find_kernel_display() -> Display | None:
    """Find what shows an output in the running cell; None outside of notebooks."""
    # IPython in a terminal has no kernel: there the terminal's own bar is right.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    return sys.modules["IPython.display"].display


class NotebookLine:
    """One output of the cell, made when it is first shown and then drawn anew."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, line: str) -> None:
        """Show a line in place of the one before."""
        shown = {"text/plain": line, "text/html": format_html([line]) if line else ""}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)
