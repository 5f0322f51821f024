"""The command line: the whole path from a shell."""

from __future__ import annotations

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the program and exit with its code; see `smidgen.cli.app.main`."""
    # `app` loads the commands of other packages, which import from this one.
    from smidgen.cli import app

    app.main(arguments)
