"""Guards that restore whatever a pass changes about the caller's model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

_RECOMPUTES = "gradient_checkpointing"


@contextmanager
def disable_recomputing(model: nn.Module) -> Iterator[None]:
    """Switch off gradient checkpointing, so that each module runs once."""
    recomputing = [m for m in model.modules() if getattr(m, _RECOMPUTES, False) is True]
    try:
        for module in recomputing:
            setattr(module, _RECOMPUTES, False)
        yield
    finally:
        for module in recomputing:
            setattr(module, _RECOMPUTES, True)


@contextmanager
def preserve_model(model: nn.Module, *, dropout: bool = False) -> Iterator[None]:
    """Run in evaluation mode with a forked RNG; restore both, also on exceptions.

    torch's fused transformer layers are switched off too: they do not call the layers
    they hold, so hooks would see nothing. Weights, buffers and gradients need no guard:
    passes compute on detached weights and copied buffers. With `dropout` the model trains,
    except layers with running statistics.
    """
    training = {module: module.training for module in model.modules()}
    fused = torch.backends.mha.get_fastpath_enabled()
    devices = {p.device.index or 0 for p in model.parameters() if p.is_cuda}
    # Inside a caller's inference mode gradients could not be computed.
    with (
        torch.inference_mode(False),
        torch.random.fork_rng(devices=sorted(devices)),
        # In training mode some networks recompute activations; that only takes time here.
        disable_recomputing(model),
    ):
        try:
            torch.backends.mha.set_fastpath_enabled(False)
            for module in training:
                module.training = dropout and not isinstance(module, _NormBase)
            yield
        finally:
            for module, mode in training.items():
                module.training = mode
            torch.backends.mha.set_fastpath_enabled(fused)
