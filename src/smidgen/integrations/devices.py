"""Where a model's work is done: a device by its name, and whether it is here."""

from __future__ import annotations

import torch

from smidgen.errors import ArgumentError, reason

AUTO = "auto"
"""A CUDA device if this machine has one, else the processor."""


def find_device(given: str | torch.device, argument: str = "device") -> torch.device:
    """Find a device, and make sure that tensors can be kept there.

    Args:
        given: "auto", or what `torch.device` takes: "cpu", "cuda", "cuda:1", "mps".
        argument: What the caller calls it, for errors.

    Returns:
        The device.

    Raises:
        ArgumentError: If there is no such device, or not on this machine.
    """
    if given == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(given)
        # Naming a device asks nobody; a value that comes back proves that it is there.
        torch.zeros(1, device=device).item()
    # A build of torch without CUDA asserts; others raise what their vendors chose.
    except (AssertionError, ImportError, RuntimeError) as error:
        raise ArgumentError(
            f"{argument} must be auto or a torch device of this machine, got "
            f"{str(given)!r} ({reason(error)[:120]}). Leave it out, or take cpu."
        ) from error
    return device
