"""`smidgen serve`: a ready folder as an HTTP service."""

from smidgen.cli.serving.command import serve

__all__ = ["serve"]
