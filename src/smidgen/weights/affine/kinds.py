"""The kinds of modules that have affine layers: a new one is a row here and a file."""

from __future__ import annotations

from torch import nn

from smidgen.weights.affine.attention import ATTENTION
from smidgen.weights.affine.convolution import CONVOLUTION, TRANSPOSED_CONVOLUTION
from smidgen.weights.affine.experts import EXPERTS
from smidgen.weights.affine.kind import Kind, Matrix
from smidgen.weights.affine.linear import LINEAR
from smidgen.weights.affine.recurrent import RECURRENT

LAYER_KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        LINEAR,
        CONVOLUTION,
        TRANSPOSED_CONVOLUTION,
        ATTENTION,
        RECURRENT,
        EXPERTS,
    )
}
"""All kinds by name."""


def find_matrices(module: nn.Module) -> tuple[str, tuple[Matrix, ...] | str]:
    """Find a module's kind and its matrices, or say why it has none."""
    for name, kind in LAYER_KINDS.items():
        found = kind.find(module)
        if found is not None:
            return name, found
    return "", f"{type(module).__name__} is not an affine layer"
