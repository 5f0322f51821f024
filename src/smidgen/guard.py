"""The caller's model is a guest: whatever a pass needs of it is put back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Run in evaluation mode with a forked RNG; restore both, also on exceptions.

    Args:
        model: The caller's model. Weights, flags and gradients are not this guard's
            business: passes compute on detached weights.

    Yields:
        Nothing.
    """
    training = {module: module.training for module in model.modules()}
    devices = {p.device.index or 0 for p in model.parameters() if p.is_cuda}
    with torch.random.fork_rng(devices=sorted(devices)):
        try:
            for module in training:
                module.training = False
            yield
        finally:
            for module, was in training.items():
                module.training = was
