"""The matrices of torch's nn.MultiheadAttention, which it uses without calling a layer."""

from __future__ import annotations

from torch import nn

from smidgen.runtime.sites.attention import SEPARATE, is_plain_attention
from smidgen.weights.affine.kind import Kind, Matrix


def _find(module: nn.Module) -> tuple[Matrix, ...] | str | None:
    if not isinstance(module, nn.MultiheadAttention):
        return None
    if not is_plain_attention(module):
        return f"{type(module).__name__} is not an affine layer"
    outward = Matrix("out_proj.weight", "out_proj.bias", "out_proj")
    if module._qkv_same_embed_dim:
        return Matrix("in_proj_weight", "in_proj_bias", "in_proj"), outward
    # Their one bias is of three layers, so it is of none.
    return *(Matrix(f"{name}_weight", None, name) for name in SEPARATE), outward


ATTENTION = Kind("attention", _find)
"""Queries, keys and values one below the other, and the output."""
