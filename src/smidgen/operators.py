"""Symmetric matrices in the form that is cheap to keep and to invert.

`Kronecker` is the curvature of one affine map, G ⊗ A, in its eigenbasis:
A = U_A diag(a) U_Aᵀ, G = U_G diag(g) U_Gᵀ. Adding a prior precision τ gives coordinate
(i, j) the precision g_i a_j + τ, so a new τ costs a division (DESIGN 4.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Kronecker:
    """G ⊗ A as eigenvectors and eigenvalues; G is n × n, A is m × m."""

    row_vectors: Tensor
    row_values: Tensor
    column_vectors: Tensor
    column_values: Tensor

    @classmethod
    def from_factors(cls, rows: Tensor, columns: Tensor) -> Kronecker:
        """Decompose the factors G (rows) and A (columns) in fp64, clamped at zero."""
        row_values, row_vectors = _eigh(rows)
        column_values, column_vectors = _eigh(columns)
        return cls(row_vectors, row_values, column_vectors, column_values)

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Kronecker:
        """Return a copy in another type or on another device."""
        return Kronecker(
            *(getattr(self, name).to(device, dtype) for name in self.__dataclass_fields__)
        )

    @property
    def floats(self) -> int:
        """Floats of the two factors: n² + m²."""
        return self.row_vectors.numel() + self.column_vectors.numel()

    def eigenvalues(self) -> Tensor:
        """Curvature of each coordinate, (n, m)."""
        return torch.outer(self.row_values, self.column_values)

    def coordinates(self, deltas: Tensor, inputs: Tensor) -> Tensor:
        """Write J = Σ_t δ_t x_tᵀ in the eigenbasis.

        Rotating δ and x first keeps every product small.

        Args:
            deltas: Output gradients, (..., T, n).
            inputs: Inputs, (..., T, m).

        Returns:
            J' = U_Gᵀ J U_A, (..., n, m).
        """
        rotated = (deltas @ self.row_vectors).transpose(-2, -1)
        return rotated @ (inputs @ self.column_vectors)

    def inverse_weights(self, precisions: Tensor) -> Tensor:
        """Variance of each coordinate under each prior precision, (n·m, P)."""
        curvature = self.eigenvalues().flatten()
        return (curvature[:, None] + precisions.to(curvature)).reciprocal_()

    def dense(self) -> Tensor:
        """G ⊗ A as an (n·m, n·m) matrix; for checks on small maps only."""
        rows = self.row_vectors * self.row_values @ self.row_vectors.T
        columns = self.column_vectors * self.column_values @ self.column_vectors.T
        return torch.kron(rows, columns)


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    symmetric = (matrix + matrix.T).double() / 2
    values, vectors = torch.linalg.eigh(symmetric)
    return values.clamp_min(0), vectors
