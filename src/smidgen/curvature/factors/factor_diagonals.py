"""Diagonals of the factors A and G: the size of a layer's inputs and output gradients.

diag(G ⊗ A) is G_ii A_jj, and n + m sums are enough for it: a full factor is never formed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from smidgen.curvature.base import Operator
from smidgen.curvature.factors.factor_sum import FactorSum
from smidgen.curvature.kronecker import KroneckerAccumulator
from smidgen.curvature.operators import Diagonal


class _DiagonalSum(FactorSum):
    """A running sum of v ∘ v."""

    def __init__(self, side: int, rank: int, like: Tensor, *, whole: bool = False) -> None:
        super().__init__(side, side, like)
        self.square = None
        self.squares = like.new_zeros(side, dtype=torch.float64)

    def add(self, vectors: Tensor) -> None:
        """Add the squares of vectors (..., d)."""
        self.squares += vectors.square().flatten(0, -2).sum(0).double()

    @property
    def newest(self) -> Tensor:
        """The sum itself."""
        return self.squares

    def total(self) -> Tensor:
        """The diagonal, (d,)."""
        return self.squares


class DiagonalAccumulator(KroneckerAccumulator):
    """Running sums of the diagonals of A and G of all blocks."""

    make_sum = _DiagonalSum

    def operators(self, scale: float) -> dict[str, Operator]:
        """Multiply the diagonals out, G_ii A_jj; blocks must not be scattered."""
        operators: dict[str, Operator] = {}
        for name, sums in self.blocks.items():
            rows = sums.rows.total() * scale
            columns = sums.columns.total() / sums.count.clamp_min(1)
            operators[name] = Diagonal(torch.outer(rows, columns).flatten())
        return operators
