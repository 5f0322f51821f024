"""The matrices of torch's recurrent layers: those of inputs, of states, and of projections."""

from __future__ import annotations

from torch import nn

from smidgen.runtime.sites.recurrent import name_recurrent
from smidgen.weights.affine.kind import Kind, Matrix


def _find(module: nn.Module) -> tuple[Matrix, ...] | None:
    found = name_recurrent(module).items()
    return tuple(Matrix(*names, site) for site, names in found) or None


RECURRENT = Kind("recurrent", _find)
"""From inputs and from states to gates; every step is a further use."""
