"""Which rows have a target: the one rule that fitting, tuning and scoring share."""

from __future__ import annotations

import torch
from torch import Tensor

IGNORED = -100
"""The label of rows without a target, as Hugging Face has it."""


def has_target(targets: Tensor) -> Tensor:
    """Find the rows (R,) of targets (R, ...) that have one; −100 marks whole numbers only."""
    # torch would take an unsigned 156 for −100.
    if targets.is_floating_point() or not targets.dtype.is_signed:
        return torch.ones(len(targets), dtype=torch.bool, device=targets.device)
    # One more axis, so that a vector has one to reduce.
    return (targets != IGNORED).unsqueeze(-1).flatten(1).any(-1)
