"""The structures of the curvature of chosen weights, each cheap to keep and to invert.

`Kronecker` is G ⊗ A in its eigenbasis, where h = g_i a_j, of which leading parts may be
enough; `Eigenbasis` keeps that basis and measures h; `Diagonal` measures it in the weights
themselves; `Dense` is the whole matrix of several layers together, in its eigenbasis;
`Isotropic` has no curvature at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from smidgen.curvature.base import Operator
from smidgen.curvature.factors.factor_sum import decompose
from smidgen.curvature.factors.operator import Kronecker, TwoSided
from smidgen.curvature.jacobian import Jacobian
from smidgen.outputs.problem import Problem
from smidgen.types import Shape
from smidgen.weights.blocks import LayerBlock

JOINT = "all maps"
"""Name of the one operator that spans all layers."""


@dataclass(frozen=True, eq=False)
class Eigenbasis(TwoSided):
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
        values, vectors = decompose(matrix)
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


@dataclass(frozen=True, eq=False)
class Isotropic(Operator):
    """No curvature: the variance of a direction is ‖J‖²/τ, and nothing is stored (DESIGN 4.10).

    `empty` (0,) has the type and the device that it works in.
    """

    count: int
    empty: Tensor
    structure: ClassVar[str] = "isotropic"
    scattered: ClassVar[bool] = True

    @classmethod
    def of_blocks(
        cls, problem: Problem, blocks: Sequence[LayerBlock]
    ) -> dict[str, Operator]:
        """Make one for each block, by its layer's name."""
        empty = torch.empty(0, dtype=problem.working_type, device=problem.device)
        return {block.layer.name: cls(block.size, empty) for block in blocks}

    @property
    def values(self) -> Tensor:
        """None at all, (0,)."""
        return self.empty

    @property
    def size(self) -> int:
        """How many weights it is of."""
        return self.count

    @property
    def floats(self) -> int:
        """Nothing is kept."""
        return 0

    def coordinates(self, *jacobians: Jacobian) -> Tensor:
        """There are none, (..., 0)."""
        return self.empty.new_zeros(*jacobians[0].deltas.shape[:-2], 0)

    def covariance(
        self, jacobians: Sequence[Jacobian], precisions: Tensor, weights: Tensor
    ) -> Tensor:
        """Covariance (P, B, K, K): products of Jacobians over each precision."""
        (jacobian,) = jacobians
        products = jacobian.products().to(self.dtype)  # (B, K, K)
        return products * precisions.to(products).reciprocal()[:, None, None, None]

    def weights(self, coordinates: Tensor) -> Tensor:
        """Nothing, in every weight."""
        return coordinates.new_zeros(*coordinates.shape[:-1], self.count)

    def draw(self, normals: Tensor, precision: Tensor, scale: float) -> Tensor:
        """Scale the normals, all alike."""
        return normals.to(self.empty) * (scale / precision.to(self.empty)).sqrt()

    def variances(self, precision: float, scale: float) -> Tensor:
        """The prior's, for every weight."""
        return self.empty.new_full((self.count,), scale / precision)

    def marginals(self, values: Tensor) -> Tensor:
        """Nothing, in every weight."""
        return self.weights(values)


STRUCTURES: dict[str, type[Operator]] = {
    kind.structure: kind for kind in (Kronecker, Eigenbasis, Diagonal, Dense, Isotropic)
}
