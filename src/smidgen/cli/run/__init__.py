"""`smidgen run`, and what other commands do with the folder that it makes."""

from smidgen.cli.run.command import run

__all__ = ["run"]
