"""A hash that tells one set of weights from another."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def fingerprint(model: nn.Module) -> str:
    """Hash names, types, shapes and bytes of all weights and persistent buffers.

    Args:
        model: The model; it is only read.

    Returns:
        A SHA-256 in hexadecimal.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(memoryview(flat.view(torch.uint8).numpy()))
    return digest.hexdigest()
