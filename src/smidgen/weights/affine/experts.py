"""The matrices of transformers' fused experts, one below the other."""

from __future__ import annotations

from torch import nn

from smidgen.runtime.sites.experts import name_experts
from smidgen.weights.affine.kind import Kind, Matrix


def _find(module: nn.Module) -> tuple[Matrix, ...] | None:
    found = name_experts(module)
    # Stored (experts, out, in) or (experts, in, out).
    axes = (0, 2) if found and module.is_transposed else (0, 1)
    matrices = (Matrix(*names, site, 3, axes) for site, names in found.items())
    return tuple(matrices) or None


EXPERTS = Kind("experts", _find)
"""Rows of one expert after the other; a position runs those of its own."""
