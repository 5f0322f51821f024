"""The command line: the whole path from a shell."""

from __future__ import annotations

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the program and exit with its code; see `smidgen.cli.app.main`."""
    # Commands of other packages import from this one, and need no `app`.
    from smidgen.cli import app

    app.main(arguments)
