"""The curvature of one affine map, in the form that is cheap to keep and to invert.

An operator has a basis of the map's n × m weights and a curvature h_ij for each of its
coordinates. A prior precision τ makes that h_ij + τ, so a new τ costs a division
(DESIGN 4.3). `Kronecker` is G ⊗ A in its eigenbasis, where h_ij = g_i a_j; `Eigenbasis`
keeps that basis and measures h_ij; `Diagonal` measures it in the weights themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from smidgen.types import Shape

Kind = TypeVar("Kind", bound="Operator")


@dataclass(frozen=True, eq=False)
class Operator(ABC):
    """Curvature of one map's chosen block; all its fields are tensors."""

    structure: ClassVar[str]

    @property
    @abstractmethod
    def values(self) -> Tensor:
        """Curvature of each coordinate, (n, m)."""

    @property
    @abstractmethod
    def floats(self) -> int:
        """How many floats the structure keeps."""

    @abstractmethod
    def coordinates(self, deltas: Tensor, inputs: Tensor) -> Tensor:
        """Write J = Σ_t δ_t x_tᵀ in the basis.

        Args:
            deltas: Output gradients, (..., T, n).
            inputs: Inputs, (..., T, m).

        Returns:
            The coordinates, (..., n, m).
        """

    @abstractmethod
    def dense(self) -> Tensor:
        """The curvature as an (n·m, n·m) matrix; for checks on small maps only."""

    @staticmethod
    @abstractmethod
    def shapes(rows: int, columns: int) -> tuple[Shape, ...]:
        """Shapes of the fields, in their order, for an n × m block."""

    @property
    def dtype(self) -> torch.dtype:
        """The type everything is computed in."""
        return self.values.dtype

    def inverse_weights(self, precisions: Tensor) -> Tensor:
        """Variance of each coordinate under each prior precision, (n·m, P)."""
        curvature = self.values.flatten()
        return (curvature[:, None] + precisions.to(curvature)).reciprocal_()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = [each.name for each in fields(self)]
        return all(torch.equal(getattr(self, n), getattr(other, n)) for n in names)

    __hash__ = None  # type: ignore[assignment]

    def to(self: Kind, dtype: torch.dtype, device: torch.device | str = "cpu") -> Kind:
        """Return a copy in another type or on another device."""
        parts = (getattr(self, each.name).to(device, dtype) for each in fields(self))
        return type(self)(*parts)


@dataclass(frozen=True, eq=False)
class Kronecker(Operator):
    """G ⊗ A as eigenvectors and eigenvalues: A = U_A diag(a) U_Aᵀ, G = U_G diag(g) U_Gᵀ."""

    row_vectors: Tensor
    row_values: Tensor
    column_vectors: Tensor
    column_values: Tensor
    structure: ClassVar[str] = "kron"

    @classmethod
    def from_factors(cls, rows: Tensor, columns: Tensor) -> Kronecker:
        """Decompose the factors G (rows) and A (columns) in fp64, clamped at zero."""
        row_values, row_vectors = _eigh(rows)
        column_values, column_vectors = _eigh(columns)
        return cls(row_vectors, row_values, column_vectors, column_values)

    @property
    def values(self) -> Tensor:
        """Products of the eigenvalues, g_i a_j."""
        return torch.outer(self.row_values, self.column_values)

    @property
    def floats(self) -> int:
        """Floats of the two factors: n² + m²."""
        return self.row_vectors.numel() + self.column_vectors.numel()

    def coordinates(self, deltas: Tensor, inputs: Tensor) -> Tensor:
        """Compute J' = U_Gᵀ J U_A."""
        return _rotated(deltas, inputs, self.row_vectors, self.column_vectors)

    def dense(self) -> Tensor:
        """G ⊗ A."""
        return _from_basis(self.row_vectors, self.column_vectors, self.values)

    @staticmethod
    def shapes(rows: int, columns: int) -> tuple[Shape, ...]:
        """Vectors and values of the rows, then of the columns."""
        return (rows, rows), (rows,), (columns, columns), (columns,)


@dataclass(frozen=True, eq=False)
class Eigenbasis(Operator):
    """The eigenbasis of G ⊗ A with the curvature measured in it (EKFAC)."""

    row_vectors: Tensor
    column_vectors: Tensor
    moments: Tensor
    structure: ClassVar[str] = "ekfac"

    @property
    def values(self) -> Tensor:
        """Second moments of the coordinates."""
        return self.moments

    @property
    def floats(self) -> int:
        """Two bases and the moments: n² + m² + n·m."""
        return sum(getattr(self, each.name).numel() for each in fields(self))

    def coordinates(self, deltas: Tensor, inputs: Tensor) -> Tensor:
        """Compute J' = U_Gᵀ J U_A."""
        return _rotated(deltas, inputs, self.row_vectors, self.column_vectors)

    def dense(self) -> Tensor:
        """(U_G ⊗ U_A) diag(h) (U_G ⊗ U_A)ᵀ."""
        return _from_basis(self.row_vectors, self.column_vectors, self.moments)

    @staticmethod
    def shapes(rows: int, columns: int) -> tuple[Shape, ...]:
        """Vectors of the rows, of the columns, and the moments."""
        return (rows, rows), (columns, columns), (rows, columns)


@dataclass(frozen=True, eq=False)
class Diagonal(Operator):
    """The diagonal of the curvature, in the weights themselves."""

    moments: Tensor
    structure: ClassVar[str] = "diag"

    @property
    def values(self) -> Tensor:
        """Second moments of the weights' gradients."""
        return self.moments

    @property
    def floats(self) -> int:
        """One float for each weight."""
        return self.moments.numel()

    def coordinates(self, deltas: Tensor, inputs: Tensor) -> Tensor:
        """Compute J itself."""
        return deltas.transpose(-2, -1) @ inputs

    def dense(self) -> Tensor:
        """The diagonal matrix."""
        return self.moments.flatten().diag()

    @staticmethod
    def shapes(rows: int, columns: int) -> tuple[Shape, ...]:
        """The moments."""
        return ((rows, columns),)


STRUCTURES: dict[str, type[Operator]] = {
    each.structure: each for each in (Kronecker, Eigenbasis, Diagonal)
}


def _rotated(deltas: Tensor, inputs: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Rotate δ and x first, then contract over positions: every product is small."""
    return (deltas @ rows).transpose(-2, -1) @ (inputs @ columns)


def _from_basis(rows: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    basis = torch.kron(rows, columns)
    return basis * values.flatten() @ basis.T


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    symmetric = (matrix + matrix.T).double() / 2
    values, vectors = torch.linalg.eigh(symmetric)
    return values.clamp_min(0), vectors
