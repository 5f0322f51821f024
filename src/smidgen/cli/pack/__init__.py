"""`smidgen pack`: a model and its posterior, in one folder."""

from smidgen.cli.pack.command import pack

__all__ = ["pack"]
