"""Devices by name, checked to be on this machine."""

from __future__ import annotations

import torch

from smidgen.errors import ArgumentError, reason

AUTO = "auto"
"""A CUDA device if this machine has one, else the processor."""


def find_device(name: str | torch.device, argument: str = "device") -> torch.device:
    """Find a device ("auto", or a name torch knows) and make sure it can hold tensors."""
    if name == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        # torch takes any name; only a value read back proves that the device is there.
        torch.zeros(1, device=device).item()
    # torch without CUDA raises AssertionError; other backends choose their own errors.
    except (AssertionError, ImportError, RuntimeError) as error:
        raise ArgumentError(
            f"{argument} must be auto or a torch device of this machine, got "
            f"{str(name)!r} ({reason(error)[:120]}). Leave it out, or use cpu."
        ) from error
    return device
