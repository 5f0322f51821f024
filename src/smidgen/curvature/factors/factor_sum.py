"""`FactorSum`: one Kronecker factor Σ v vᵀ, held in the smallest form that its rank allows.

While there are fewer vectors (d,) than d, they are kept themselves: the factor is of lower
rank than its side is wide, and no square is formed. A factor whose rank is capped stays a
sketch (Frequent Directions; Ghashami, Liberty, Phillips and Woodruff, 2016): whenever twice
as many rows are there as the sketch may have, the largest that has no place in it is taken
off all. What that takes away in sum bounds what the sketch misses of the factor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Narrower sides are squares at once: they are small, and their decomposition is cheap.
_LEAST_SIDE = 256
# A sketch has so many rows more than the rank it is for, or twice as many if that is less.
_SPARE_ROWS = 64


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues (k,) and eigenvectors (d, k) of a factor, and what it is beside them.

    In all other directions it is taken for `level` (,) times the identity. `rest` (,) is how
    far from all that it can be, as a multiple of the identity.
    """

    values: Tensor
    vectors: Tensor
    rest: Tensor
    level: Tensor

    @property
    def largest(self) -> float:
        """The largest eigenvalue, that of left-out directions too."""
        return max(float(self.level), float(self.values.max()) if len(self.values) else 0.0)

    @property
    def is_complete(self) -> bool:
        """Whether no direction is left out."""
        return self.vectors.shape[0] == self.vectors.shape[1]

    def drop(self, most: float) -> Spectrum:
        """Leave out as many of the smallest eigenvalues as keep `rest` within a bound."""
        if not len(self.values):
            return self
        # Half the range, from the least to the largest that is left out.
        least = self._widen(self.values.min(), self.values.min())[0]
        return self.keep(self.values > 2 * most + least - self.rest)

    def keep(self, chosen: Tensor) -> Spectrum:
        """Keep the eigenvectors that a mask (k,) chooses; the others join the level."""
        if chosen.all():
            return self
        dropped = self.values[~chosen]
        low, high = self._widen(dropped.min(), dropped.max())
        # Half-way, what was dropped is off by half its range at most. What was missed before
        # may be in any direction, kept or not.
        return Spectrum(
            self.values[chosen],
            self.vectors[:, chosen],
            torch.maximum((high - low) / 2, self.rest),
            (high + low) / 2,
        )

    def _widen(self, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """The range of eigenvalues that are left out, with those that are out already."""
        high = high + self.rest
        if not self.is_complete:
            low = torch.minimum(low, (self.level - self.rest).clamp_min(0))
            high = torch.maximum(high, self.level + self.rest)
        return low, high


class FactorSum:
    """A running sum of v vᵀ; `rank` caps how many eigenvectors are wanted in the end."""

    def __init__(self, side: int, rank: int, like: Tensor, *, whole: bool = False) -> None:
        self.side, self.rank = side, rank
        self.rest = like.new_zeros((), dtype=torch.float64)
        self.rows: list[Tensor] = []
        self.square: Tensor | None = None
        if whole or (side < _LEAST_SIDE and rank >= side):
            self.square = like.new_zeros(side, side, dtype=torch.float64)

    def add(self, vectors: Tensor) -> None:
        """Add vectors (..., d)."""
        if self.square is not None:
            self.square += gram(vectors)
            return
        # A copy: the caller may fill the same memory with its next batch.
        rows = vectors.reshape(-1, self.side).clone()
        if self.rank >= self.side:
            self.rows.append(rows)
            if sum(map(len, self.rows)) >= self.side:
                self.total()
            return
        most = count_rows(self.side, self.rank)
        while len(rows):
            room = most - sum(map(len, self.rows))
            self.rows.append(rows[:room])
            rows = rows[room:]
            if len(self.rows[-1]) == room:
                self._shrink()

    @property
    def newest(self) -> Tensor:
        """Numbers that cannot all be finite unless all that was added is."""
        # Of a square the diagonal is enough: |G_ij| is at most √(G_ii G_jj).
        if self.square is not None:
            return self.square.diagonal()
        return self.rows[-1] if self.rows else self.rest

    def total(self) -> Tensor:
        """Write the sum as a matrix (d, d) from now on, and return it."""
        if self.square is None:
            self.square = self.rest.new_zeros(self.side, self.side)
            for rows in self.rows:
                self.square += gram(rows)
            self.rows = []
        return self.square

    def _shrink(self) -> None:
        """Leave the sketch's number of rows, and count what is taken off."""
        rows = torch.cat(self.rows).double()
        count = count_rows(self.side, self.rank) // 2
        values, vectors = decompose(rows @ rows.T)  # ascending
        taken = values[-count - 1]
        kept = values[-count:]
        scale = ((kept - taken).clamp_min(0) / kept.clamp_min(_tiny(kept))).sqrt()
        self.rows = [scale[:, None] * (vectors[:, -count:].T @ rows)]
        self.rest += taken

    def restrict(self, indices: Tensor | None) -> FactorSum:
        """The sum of some entries of the vectors alone; None for all."""
        if indices is None:
            return self
        indices = indices.to(self.rest.device)
        other = FactorSum(len(indices), min(self.rank, len(indices)), self.rest)
        other.rest = self.rest
        if self.square is not None:
            other.square = self.square[indices][:, indices]
        else:
            other.rows, other.square = [rows[:, indices] for rows in self.rows], None
        return other

    def decompose(self, scale: float = 1.0, count: Tensor | float = 1.0) -> Spectrum:
        """Decompose the sum times `scale` over `count`: all eigenvectors, or those it can have."""
        if self.square is not None or sum(map(len, self.rows)) >= self.side:
            values, vectors = decompose(self.total() * scale / count)
        else:
            # Rᵀ = Q S has the eigenvectors Q U of S Sᵀ = U diag(λ) Uᵀ, orthogonal however small
            # some of λ are.
            rows = torch.cat([*self.rows, self.rest.new_zeros(0, self.side)]).double()
            basis, small = torch.linalg.qr(rows.T)
            values, vectors = decompose(small @ small.T * scale / count)
            vectors = basis @ vectors
        missed = self.rest * scale / count
        spectrum = Spectrum(values, vectors, missed, torch.zeros_like(missed))
        # Ascending: the last are the largest.
        order = torch.arange(len(values), device=values.device)
        return spectrum.keep(order >= len(values) - self.rank)


def count_rows(side: int, rank: int) -> int:
    """Count the most rows that are held of a factor: its side, or twice those of a sketch."""
    return side if rank >= side else 2 * min(2 * rank, rank + _SPARE_ROWS, side)


def gram(tensor: Tensor) -> Tensor:
    """Σ v vᵀ over all leading axes: products in the tensor's type, the sum in fp64."""
    # A product in fp32 gives directions that the data say nothing about a curvature of 1e-7
    # of the largest, and at a small prior precision the evidence counts each of them. So
    # whatever is one vector an example comes in fp64; only `expand`, with a vector a position,
    # would take twice as long.
    flat = tensor.reshape(-1, tensor.shape[-1])
    return (flat.T @ flat).double()


def decompose(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, clamped at zero, and eigenvectors of a symmetric matrix, in fp64."""
    symmetric = (matrix + matrix.T).double() / 2
    values, vectors = torch.linalg.eigh(symmetric)
    return values.clamp_min(0), vectors


def _tiny(like: Tensor) -> float:
    return torch.finfo(like.dtype).tiny
