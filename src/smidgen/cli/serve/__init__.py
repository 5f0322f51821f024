"""`smidgen serve`: a folder as a small HTTP service."""

from smidgen.cli.serve.command import serve

__all__ = ["serve"]
