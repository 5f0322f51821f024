"""The curvature of chosen weights, in the form that is cheap to keep and to invert.

An operator has an orthogonal basis of D weights and a curvature h_d for each of its
coordinates. A prior precision τ makes that h_d + τ, so a new τ costs a division
(DESIGN 4.3). `Kronecker` is G ⊗ A in its eigenbasis, where h = g_i a_j; `Eigenbasis` keeps
that basis and measures h; `Diagonal` measures it in the weights themselves; `Dense` is the
whole matrix of several layers together, in its eigenbasis.

A `Jacobian` J = Σ_t δ_t x_tᵀ, over the positions t of an example, stays two thin sides until
it is rotated or restricted to the chosen entries: its cost is that of the subset.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from math import prod
from typing import ClassVar, Self

import torch
from torch import Tensor

from smidgen.runtime.memory import lay_out
from smidgen.types import Shape
from smidgen.weights.blocks import LayerBlock


@dataclass(frozen=True, eq=False)
class Jacobian:
    """J of one block as output gradients (..., T, n) and inputs (..., T, m).

    `entries` are the chosen weights of a scattered block, as indices into its n·m grid;
    None stands for all of them.
    """

    deltas: Tensor
    inputs: Tensor
    entries: Tensor | None = None

    def rotated(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Write J in a basis of rows (n, n) and columns (m, m): (..., n·m)."""
        # δ and x are rotated first, then contracted over positions: every product is small.
        deltas = self.deltas.to(rows.dtype) @ rows  # (..., T, n)
        inputs = self.inputs.to(rows.dtype) @ columns  # (..., T, m)
        return (deltas.mT @ inputs).flatten(-2)

    def flat(self) -> Tensor:
        """Write J in the weights themselves: (..., D)."""
        kind = torch.promote_types(self.deltas.dtype, self.inputs.dtype)
        deltas, inputs = self.deltas.to(kind), self.inputs.to(kind)
        if self.entries is None:
            return (deltas.mT @ inputs).flatten(-2)
        positions, rows, columns = *deltas.shape[-2:], inputs.shape[-1]
        if len(self.entries) * positions < rows * columns:
            left = deltas[..., self.entries // columns]  # (..., T, D)
            return (left * inputs[..., self.entries % columns]).sum(-2)
        grid = (deltas.mT @ inputs).flatten(-2)  # (..., n·m)
        return grid[..., self.entries]

    def parts(self, numbers: int) -> Iterator[Jacobian]:
        """Split the examples (B, T, ·) into parts whose J has about `numbers` entries."""
        positions, rows, columns = *self.deltas.shape[-2:], self.inputs.shape[-1]
        size = rows * columns
        if self.entries is not None:
            # As `flat` forms them: entry by entry if that is less than the whole grid.
            size = min(size, len(self.entries) * positions)
        count = max(1, numbers // max(1, size))
        for start in range(0, len(self.deltas), count):
            some = slice(start, start + count)
            yield Jacobian(self.deltas[some], self.inputs[some], self.entries)

    def restricted(self, rows: Tensor | None, columns: Tensor | None) -> Jacobian:
        """Keep some of the rows and columns; None keeps all."""
        deltas = self.deltas if rows is None else self.deltas[..., rows]
        inputs = self.inputs if columns is None else self.inputs[..., columns]
        return Jacobian(deltas, inputs, self.entries)


JOINT = "all maps"
"""Name of the one operator that spans all layers."""


@dataclass(frozen=True, eq=False)
class Operator(ABC):
    """Curvature of D chosen weights; all its fields are tensors.

    `joint` says that one operator spans all layers, `scattered` that it can hold single
    entries and not only crossings of rows and columns.
    """

    structure: ClassVar[str]
    joint: ClassVar[bool] = False
    scattered: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, lay_out(getattr(self, field.name)))

    @property
    @abstractmethod
    def values(self) -> Tensor:
        """Curvature of each coordinate, (D,)."""

    @property
    @abstractmethod
    def floats(self) -> int:
        """How many floats the structure keeps."""

    @abstractmethod
    def coordinates(self, *jacobians: Jacobian) -> Tensor:
        """Write the Jacobian of this operator's layers in its basis, (..., D)."""

    @abstractmethod
    def weights(self, coordinates: Tensor) -> Tensor:
        """Turn coordinates (..., D) back into the weights' own basis."""

    @abstractmethod
    def marginals(self, values: Tensor) -> Tensor:
        """Diagonal, in the weights, of the matrix with these values (D,) in the basis."""

    @staticmethod
    @abstractmethod
    def shapes(rows: int, columns: int, size: int) -> tuple[Shape, ...]:
        """Shapes of the fields, in their order, for D weights of an n × m grid."""

    @classmethod
    def count_stored(cls, blocks: Sequence[LayerBlock]) -> int:
        """Count the numbers in all fields of the operators of some blocks."""
        sides = [(b.row_count, b.column_count, b.size) for b in blocks]
        if cls.joint:
            sides = [(0, 0, sum(block.size for block in blocks))]
        return sum(prod(shape) for side in sides for shape in cls.shapes(*side))

    @property
    def dtype(self) -> torch.dtype:
        """The type everything is computed in."""
        return self.values.dtype

    def inverse_weights(self, precisions: Tensor) -> Tensor:
        """Variance of each coordinate under each prior precision, (D, P)."""
        curvature = self.values
        return (curvature[:, None] + precisions.to(curvature)).reciprocal_()

    def dense(self) -> Tensor:
        """The curvature as a (D, D) matrix; for checks on small layers only."""
        eye = torch.eye(len(self.values), dtype=self.dtype, device=self.values.device)
        basis = self.weights(eye)  # (D, D), a basis vector in each row
        return basis.T * self.values @ basis

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        pairs = zip(self.tensors(), other.tensors(), strict=True)
        return all(torch.equal(left, right) for left, right in pairs)

    __hash__ = None  # type: ignore[assignment]

    def to(self, dtype: torch.dtype, device: torch.device | str = "cpu") -> Self:
        """Return a copy in another type or on another device."""
        return type(self)(*(tensor.to(device, dtype) for tensor in self.tensors()))

    def tensors(self) -> tuple[Tensor, ...]:
        """List the fields, in their order."""
        return tuple(getattr(self, field.name) for field in fields(self))


class _TwoSided(Operator):
    """Operators whose basis is the product of one of rows and one of columns."""

    row_vectors: Tensor
    column_vectors: Tensor

    def coordinates(self, *jacobians: Jacobian) -> Tensor:
        """Compute J' = U_Gᵀ J U_A."""
        (jacobian,) = jacobians
        return jacobian.rotated(self.row_vectors, self.column_vectors)

    def weights(self, coordinates: Tensor) -> Tensor:
        """Compute U_G C U_Aᵀ."""
        sides = len(self.row_vectors), len(self.column_vectors)
        grid = coordinates.unflatten(-1, sides)  # (..., n, m)
        return (self.row_vectors @ grid @ self.column_vectors.T).flatten(-2)

    def marginals(self, values: Tensor) -> Tensor:
        """Compute (U_G ∘ U_G) V (U_A ∘ U_A)ᵀ."""
        grid = values.unflatten(-1, (len(self.row_vectors), len(self.column_vectors)))
        rows, columns = self.row_vectors.square(), self.column_vectors.square()
        return (rows @ grid @ columns.T).flatten()  # n × n, n × m, m × m


@dataclass(frozen=True, eq=False)
class Kronecker(_TwoSided):
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
        return torch.outer(self.row_values, self.column_values).flatten()

    @property
    def floats(self) -> int:
        """Floats of the two factors: n² + m²."""
        return self.row_vectors.numel() + self.column_vectors.numel()

    @staticmethod
    def shapes(rows: int, columns: int, size: int) -> tuple[Shape, ...]:
        """Vectors and values of the rows, then of the columns."""
        return (rows, rows), (rows,), (columns, columns), (columns,)


@dataclass(frozen=True, eq=False)
class Eigenbasis(_TwoSided):
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
        return sum(tensor.numel() for tensor in self.tensors())

    @staticmethod
    def shapes(rows: int, columns: int, size: int) -> tuple[Shape, ...]:
        """Vectors of the rows, of the columns, and the moments."""
        return (rows, rows), (columns, columns), (size,)


@dataclass(frozen=True, eq=False)
class Diagonal(Operator):
    """The diagonal of the curvature, in the weights themselves."""

    moments: Tensor
    structure: ClassVar[str] = "diag"
    scattered: ClassVar[bool] = True

    @property
    def values(self) -> Tensor:
        """Second moments of the weights' gradients."""
        return self.moments

    @property
    def floats(self) -> int:
        """One float for each weight."""
        return self.moments.numel()

    def coordinates(self, *jacobians: Jacobian) -> Tensor:
        """Compute J itself."""
        (jacobian,) = jacobians
        return jacobian.flat()

    def weights(self, coordinates: Tensor) -> Tensor:
        """Return the coordinates: the basis is that of the weights."""
        return coordinates

    def marginals(self, values: Tensor) -> Tensor:
        """Return the values: the basis is that of the weights."""
        return values

    @staticmethod
    def shapes(rows: int, columns: int, size: int) -> tuple[Shape, ...]:
        """The moments."""
        return ((size,),)


@dataclass(frozen=True, eq=False)
class Dense(Operator):
    """The whole curvature of a small subset over all its layers, H = U diag(h) Uᵀ."""

    vectors: Tensor
    eigenvalues: Tensor
    structure: ClassVar[str] = "full"
    joint: ClassVar[bool] = True
    scattered: ClassVar[bool] = True

    @classmethod
    def from_matrix(cls, matrix: Tensor) -> Dense:
        """Decompose a curvature matrix in fp64, clamped at zero."""
        values, vectors = _eigh(matrix)
        return cls(vectors, values)

    @property
    def values(self) -> Tensor:
        """The eigenvalues."""
        return self.eigenvalues

    @property
    def floats(self) -> int:
        """One float for each pair of weights."""
        return self.vectors.numel()

    def coordinates(self, *jacobians: Jacobian) -> Tensor:
        """Compute J U, the layers' Jacobians side by side."""
        flat = torch.cat([jacobian.flat() for jacobian in jacobians], -1)  # (..., D)
        return flat.to(self.dtype) @ self.vectors

    def weights(self, coordinates: Tensor) -> Tensor:
        """Compute C Uᵀ."""
        return coordinates @ self.vectors.T

    def marginals(self, values: Tensor) -> Tensor:
        """Compute (U ∘ U) v."""
        return self.vectors.square() @ values

    @staticmethod
    def shapes(rows: int, columns: int, size: int) -> tuple[Shape, ...]:
        """The vectors and the values."""
        return (size, size), (size,)


STRUCTURES: dict[str, type[Operator]] = {
    kind.structure: kind for kind in (Kronecker, Eigenbasis, Diagonal, Dense)
}


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    symmetric = (matrix + matrix.T).double() / 2
    values, vectors = torch.linalg.eigh(symmetric)
    return values.clamp_min(0), vectors
