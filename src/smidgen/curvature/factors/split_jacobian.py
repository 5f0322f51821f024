"""A Jacobian in the box of two bases, and the three parts of it that are outside.

With orthonormal U (n, k) and V (m, l), δ = δ∥ + δ⊥ and x = x∥ + x⊥, and J = Σ_t δ_t x_tᵀ is
the sum of four parts that are orthogonal to each other. In the box, δ∥x∥ᵀ, every coordinate
is known. Of δ∥x⊥ᵀ only the row is, of δ⊥x∥ᵀ only the column, of δ⊥x⊥ᵀ neither. Nothing large
is subtracted: only vectors lose their part along a basis (DESIGN 4.11).

Shapes as in `jacobian`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from smidgen.curvature.jacobian import NUMBERS_AT_ONCE, Jacobian, pair_by_gram, pair_flat


@dataclass(frozen=True, eq=False)
class SplitSides:
    """The four parts as sides, for few positions; None stands for what a whole basis misses."""

    inside: Tensor  # (K, B, k·l)
    along: Tensor  # δ∥ in its basis, (K, B, T, k)
    beside: Tensor  # x∥ in its basis, (B, T, l)
    apart: Tensor | None  # δ⊥, (K, B, T, n)
    gram: Tensor | None  # x⊥·x⊥ at every two positions, (B, T, T)

    def pair_outside(self, rows: Tensor, columns: Tensor, both: Tensor) -> Tensor:
        """Products (B, K, K) of the parts outside, weighed by row (k,), column (l,), or alike."""
        products = self.inside.new_zeros(())
        if self.gram is not None:
            products = pair_by_gram(self.along * rows.sqrt(), self.gram)
        if self.apart is not None:
            weighed = self.beside * columns.sqrt()
            seen = weighed @ weighed.mT
            if self.gram is not None:
                seen = seen + both * self.gram
            products = products + pair_by_gram(self.apart, seen)
        return products


@dataclass(frozen=True, eq=False)
class SplitWhole:
    """The four parts themselves, which is less where positions are many."""

    inside: Tensor  # (K, B, k·l)
    by_row: Tensor  # (K, B, k, m)
    by_column: Tensor  # (K, B, n, l)
    rest: Tensor  # (K, B, n, m)

    def pair_outside(self, rows: Tensor, columns: Tensor, both: Tensor) -> Tensor:
        """Products (B, K, K) of the parts outside, weighed by row (k,), column (l,), or alike."""
        weighed = (self.by_row * rows.sqrt()[:, None], self.by_column * columns.sqrt())
        products = both * pair_flat(self.rest.flatten(-2))
        for part in weighed:
            products = products + pair_flat(part.flatten(-2))
        return products


def split_jacobian(
    jacobian: Jacobian, rows: Tensor, columns: Tensor
) -> Iterator[SplitSides | SplitWhole]:
    """Split a Jacobian by bases (n, k) and (m, l), some of its examples after the other."""
    kept = jacobian.without_idle_positions()
    if kept.prefers_gram():
        yield _split_sides(kept, rows, columns)
        return
    for part in kept.parts(NUMBERS_AT_ONCE):
        yield _split_whole(part, rows, columns)


def _split_sides(jacobian: Jacobian, rows: Tensor, columns: Tensor) -> SplitSides:
    deltas, x = jacobian.deltas.to(rows.dtype), jacobian.features.to(rows.dtype)
    along = deltas @ rows
    first = columns[int(jacobian.bias) :]
    beside = x @ first
    if jacobian.bias:
        beside = beside + columns[0]
    gram = apart = None
    if columns.shape[1] < len(columns):
        rest = _take_away(x, beside, first)
        gram = rest @ rest.mT
        if jacobian.bias:
            # What of the ones is outside, as a feature of its own.
            ones = 1 - beside @ columns[0]  # (B, T)
            gram = gram + ones[:, :, None] * ones[:, None, :]
    if rows.shape[1] < len(rows):
        apart = _take_away(deltas, along, rows)
    return SplitSides((along.mT @ beside).flatten(-2), along, beside, apart, gram)


def _take_away(vectors: Tensor, along: Tensor, basis: Tensor) -> Tensor:
    """What vectors (..., d) have outside a basis (d, k), given their coordinates in it."""
    if not basis.shape[1]:
        return vectors
    flat, coordinates = vectors.flatten(0, -2), along.flatten(0, -2)
    return flat.addmm(coordinates, basis.T, alpha=-1).reshape(vectors.shape)


def _split_whole(jacobian: Jacobian, rows: Tensor, columns: Tensor) -> SplitWhole:
    grid = jacobian.grid().to(rows.dtype)  # (K, B, n, m)
    by_row = rows.mT @ grid  # (K, B, k, m)
    inside = by_row @ columns
    by_column = grid @ columns - rows @ inside
    rest = grid - rows @ by_row - by_column @ columns.mT
    by_row = by_row - inside @ columns.mT
    return SplitWhole(inside.flatten(-2), by_row, by_column, rest)
