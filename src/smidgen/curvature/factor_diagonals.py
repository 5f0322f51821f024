"""Diagonals of the factors A and G: the size of a layer's inputs and output gradients.

diag(G ⊗ A) is G_ii A_jj, and n + m sums are enough for it: a full factor is never formed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from smidgen.curvature.kronecker import KroneckerAccumulator
from smidgen.curvature.operators import Diagonal, Operator
from smidgen.types import Shape


class DiagonalAccumulator(KroneckerAccumulator):
    """Running sums of the diagonals of A and G of all blocks."""

    @staticmethod
    def _shape(side: int) -> Shape:
        return (side,)

    @staticmethod
    def _product(tensor: Tensor) -> Tensor:
        return tensor.square().flatten(0, -2).sum(0).double()

    def operators(self, scale: float) -> dict[str, Operator]:
        """Multiply the diagonals out, G_ii A_jj; blocks must not be scattered."""
        return {
            name: Diagonal(torch.outer(*self.factors(name, scale)).flatten())
            for name in self.names
        }
