"""The command line: the whole path from a shell."""

from __future__ import annotations

import sys
from importlib.util import find_spec

__all__ = ["main"]

# What the extra `cli` brings.
_NEEDED = ("typer", "rich")


def main(arguments: list[str] | None = None) -> None:
    """Run the program and exit with its code; see `smidgen.cli.app.main`."""
    missing = next((name for name in _NEEDED if find_spec(name) is None), None)
    if missing:
        from smidgen.errors import how_to_install

        sys.exit(
            f"smidgen: the command line needs {missing}, which is not installed. Install "
            f"it with {how_to_install('cli')}."
        )
    # Commands of other packages import from this one, and need no `app`.
    from smidgen.cli import app

    app.main(arguments)
