"""The command line: the whole path from a shell."""

from smidgen.cli.app import main

__all__ = ["main"]
