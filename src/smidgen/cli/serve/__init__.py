"""`smidgen serve`: a ready folder as an HTTP service."""

from smidgen.cli.serve.command import serve

__all__ = ["serve"]
