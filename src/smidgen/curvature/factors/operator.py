"""`Kronecker`: the curvature G ⊗ A in its eigenbasis, where h = g_i a_j (DESIGN 4.3, 4.11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from smidgen.curvature.base import Operator, weigh_products
from smidgen.curvature.factors.factor_sum import Spectrum
from smidgen.curvature.factors.low_rank import (
    LARGEST_SHARE,
    LEAST_SIZE,
    bound_error,
    cap_ranks,
    choose_box,
)
from smidgen.curvature.factors.split_jacobian import split_jacobian
from smidgen.curvature.jacobian import Jacobian
from smidgen.weights.blocks import LayerBlock


class TwoSided(Operator):
    """Operators whose basis is the product of one of rows (n, k) and one of columns (m, l)."""

    row_vectors: Tensor
    column_vectors: Tensor

    def coordinates(self, *jacobians: Jacobian) -> Tensor:
        """Compute J' = U_Gᵀ J U_A."""
        (jacobian,) = jacobians
        return jacobian.rotated(self.row_vectors, self.column_vectors)

    def weights(self, coordinates: Tensor) -> Tensor:
        """Compute U_G C U_Aᵀ."""
        grid = coordinates.unflatten(-1, self.ranks)  # (..., k, l)
        return (self.row_vectors @ grid @ self.column_vectors.T).flatten(-2)

    def marginals(self, values: Tensor) -> Tensor:
        """Compute (U_G ∘ U_G) V (U_A ∘ U_A)ᵀ."""
        grid = values.unflatten(-1, self.ranks)
        rows, columns = self.row_vectors.square(), self.column_vectors.square()
        return (rows @ grid @ columns.T).flatten()  # n × k, k × l, l × m

    @property
    def sides(self) -> tuple[int, int]:
        """Rows and columns of the block: n and m."""
        return len(self.row_vectors), len(self.column_vectors)

    @property
    def ranks(self) -> tuple[int, int]:
        """How many vectors of each side there are: k and l."""
        return self.row_vectors.shape[1], self.column_vectors.shape[1]


@dataclass(frozen=True, eq=False)
class Kronecker(TwoSided):
    """G ⊗ A as eigenvectors and eigenvalues: A = U_A diag(a) U_Aᵀ, G = U_G diag(g) U_Gᵀ.

    Some of them may do: in all other directions G and A are taken for `levels` (2,) times
    the identity, and `rests` (2,) bound how far they are from that (see `Spectrum`).
    """

    row_vectors: Tensor
    row_values: Tensor
    column_vectors: Tensor
    column_values: Tensor
    rests: Tensor
    levels: Tensor
    structure: ClassVar[str] = "kron"

    @classmethod
    def from_spectra(cls, rows: Spectrum, columns: Spectrum) -> Kronecker:
        """Put the decomposed factors G (rows) and A (columns) together."""
        return cls(
            rows.vectors,
            rows.values,
            columns.vectors,
            columns.values,
            torch.stack([rows.rest, columns.rest]),
            torch.stack([rows.level, columns.level]),
        )

    @property
    def spectra(self) -> tuple[Spectrum, Spectrum]:
        """Both factors."""
        sides = (
            (self.row_values, self.row_vectors),
            (self.column_values, self.column_vectors),
        )
        rows, columns = (
            Spectrum(*side, rest, level)
            for side, rest, level in zip(sides, self.rests, self.levels, strict=True)
        )
        return rows, columns

    @property
    def values(self) -> Tensor:
        """Products of the eigenvalues, g_i a_j."""
        return torch.outer(self.row_values, self.column_values).flatten()

    @property
    def size(self) -> int:
        """All weights of the block, n·m."""
        return prod(self.sides)

    @property
    def floats(self) -> int:
        """Floats of the vectors: n² + m², or n·k + m·l of some of them."""
        return self.row_vectors.numel() + self.column_vectors.numel()

    @property
    def is_complete(self) -> bool:
        """Whether no vector is missing."""
        return self.sides == self.ranks

    def bound_error(self, precision: float) -> float:
        """Bound what the vectors that were left out can change."""
        return bound_error(*self.spectra, precision)

    def compress(self, precision: float, tolerance: float) -> Kronecker:
        """Keep the smallest box outside which h is known well enough beside τ."""
        box = choose_box(*self.spectra, precision, tolerance)
        return self if box is None else Kronecker.from_spectra(*box)

    def shortcut(self, precision: float, tolerance: float) -> Kronecker:
        """Compress it if the box is cheaper than all vectors, or than those there are."""
        if self.size < LEAST_SIZE:
            return self
        smaller = self.compress(precision, tolerance)
        return smaller if smaller.floats <= LARGEST_SHARE * self.floats else self

    def covariance(
        self, jacobians: Sequence[Jacobian], precisions: Tensor, weights: Tensor
    ) -> Tensor:
        """Covariance (P, B, K, K): of the box, and of what is outside it."""
        if self.is_complete:
            return super().covariance(jacobians, precisions, weights)
        (jacobian,) = jacobians
        taus = precisions.to(self.values)
        outside = [self._weights_outside(tau) for tau in taus]
        pieces = []
        for part in split_jacobian(jacobian, self.row_vectors, self.column_vectors):
            beside = torch.stack([part.pair_outside(*each) for each in outside])
            pieces.append(weigh_products(part.inside, weights) + beside)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)

    def _weights_outside(self, precision: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Variances where only the row (k,), only the column (l,), or neither is known."""
        row, column = self.levels
        curvatures = (self.row_values * column, row * self.column_values, row * column)
        by_row, by_column, neither = ((h + precision).reciprocal() for h in curvatures)
        return by_row, by_column, neither

    def draw(self, normals: Tensor, precision: Tensor, scale: float) -> Tensor:
        """Turn normals (D,) into a draw: each of the four parts by its own deviation."""
        if self.is_complete:
            return super().draw(normals, precision, scale)
        rows, columns = self.row_vectors, self.column_vectors
        grid = normals.to(self.values).unflatten(0, self.sides)  # (n, m)
        weights = self.inverse_weights(precision)[:, 0].unflatten(0, self.ranks)
        by_row, by_column, neither = self._weights_outside(precision.to(self.values))
        along = rows.T @ grid  # (k, m)
        inside = along @ columns  # (k, l)
        apart = grid - rows @ along  # (n, m)
        beside = apart @ columns  # (n, l)
        drawn = (
            rows @ (inside * weights.sqrt()) @ columns.T
            + rows @ ((along - inside @ columns.T) * by_row.sqrt()[:, None])
            + (beside * by_column.sqrt()) @ columns.T
            + (apart - beside @ columns.T) * neither.sqrt()
        )
        return scale**0.5 * drawn.flatten()

    def variances(self, precision: float, scale: float) -> Tensor:
        """Diagonal of scale·(H + τ)⁻¹: directions that are left out count as one more."""
        if self.is_complete:
            return super().variances(precision, scale)
        sides = [
            # Rounding must not make less than nothing of what is outside.
            torch.cat([squares, (1 - squares.sum(1, keepdim=True)).clamp_min(0)], 1)
            for squares in (self.row_vectors.square(), self.column_vectors.square())
        ]
        return (sides[0] @ (scale / (self._grid() + precision)) @ sides[1].T).flatten()

    def _grid(self) -> Tensor:
        """Curvatures with those of the left-out directions behind them, (k + 1, l + 1)."""
        rows, columns = (
            torch.cat([values, level[None]])
            for values, level in zip(
                (self.row_values, self.column_values), self.levels, strict=True
            )
        )
        return torch.outer(rows, columns)

    def dense(self) -> Tensor:
        """The curvature as a (D, D) matrix, left-out directions at their level."""
        if self.is_complete:
            return super().dense()
        factors = []
        for side in self.spectra:
            eye = torch.eye(len(side.vectors), dtype=self.dtype, device=self.values.device)
            gaps = side.values - side.level
            factors.append(side.level * eye + (side.vectors * gaps) @ side.vectors.T)
        return torch.kron(*factors)

    @classmethod
    def count_stored(cls, blocks: Sequence[LayerBlock], rank: int | None = None) -> int:
        """Count the most numbers of the operators: vectors, values, and what is beside them."""
        sides = [(block.row_count, block.column_count) for block in blocks]
        return sum(
            (n + 1) * k + (m + 1) * j + 4 * ((k, j) != (n, m))
            for (n, m), (k, j) in zip(sides, cap_ranks(sides, rank), strict=True)
        )
