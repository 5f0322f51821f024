"""`smidgen doctor`: what is installed, and what this machine has."""

from smidgen.cli.doctor.command import doctor

__all__ = ["doctor"]
