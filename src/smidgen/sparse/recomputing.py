"""Passes that are run a second time within a backward pass: activation checkpointing.

Noise from a generator would be another one there, and the gradient that of another sample
than the loss. `torch.utils.checkpoint` restores torch's global random state only.
"""

from __future__ import annotations

import torch

from smidgen.errors import StructureError


def recomputed() -> bool:
    """Whether this forward pass runs within a backward pass."""
    return torch._C._current_graph_task_id() != -1


def refuse_recomputed_noise() -> None:
    """Refuse to draw noise anew for a loss that has been computed.

    Raises:
        StructureError: If this forward pass runs within a backward pass.
    """
    if recomputed():
        raise StructureError(
            "a layer with noise cannot be recomputed in the backward pass: the noise would "
            "be another one. Switch activation checkpointing off (Hugging Face: "
            "model.gradient_checkpointing_disable()), or leave these layers out of layers."
        )
