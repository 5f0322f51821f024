"""`smidgen push`: a folder to the Hugging Face Hub."""

from smidgen.cli.push.command import push

__all__ = ["push"]
