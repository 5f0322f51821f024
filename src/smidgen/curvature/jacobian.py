"""`Jacobian`: the derivative of outputs in one layer's chosen weights, as two thin sides.

J = Σ_t δ_t x_tᵀ over the positions t of an example. It stays a pair of sides until it is
rotated or restricted to the chosen entries, so that its cost is that of the subset. Products
of two of them need not form either (DESIGN 4.10):

    ⟨J, J'⟩ = Σ_tt' (δ_t·δ'_t')(x_t·x_t')

Shapes: K directions of the outputs, B examples, T positions, n rows, m columns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

NUMBERS_AT_ONCE = 2**24
"""Whole Jacobians are formed for so many numbers at a time."""


@dataclass(frozen=True, eq=False)
class Jacobian:
    """J of one block as output gradients (..., T, n) and the features they go with (B, T, f).

    With `bias` a column of ones comes before the features, so that m is one more than f.
    `entries` are the chosen weights of a scattered block, as indices into its n·m grid;
    None stands for all of them. `grams` remembers those of layers with the same features, as
    queries, keys and values have.
    """

    deltas: Tensor
    features: Tensor
    bias: bool = False
    entries: Tensor | None = None
    grams: dict[Hashable, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @cached_property
    def inputs(self) -> Tensor:
        """The features, and a column of ones before them if there is a bias: (B, T, m)."""
        x = self.features
        return torch.cat([x.new_ones(*x.shape[:-1], 1), x], -1) if self.bias else x

    def rotated(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Write J in a basis of rows (n, k) and columns (m, l): (..., k·l)."""
        # δ and x are rotated first, then contracted over positions: every product is small.
        deltas = self.deltas.to(rows.dtype) @ rows  # (..., T, k)
        inputs = self.inputs.to(rows.dtype) @ columns  # (..., T, l)
        return (deltas.mT @ inputs).flatten(-2)

    def flat(self) -> Tensor:
        """Write J in the weights themselves: (..., D)."""
        kind = torch.promote_types(self.deltas.dtype, self.inputs.dtype)
        deltas, inputs = self.deltas.to(kind), self.inputs.to(kind)
        if self.entries is None:
            return self.grid().flatten(-2)
        positions, rows, columns = *deltas.shape[-2:], inputs.shape[-1]
        if len(self.entries) * positions < rows * columns:
            left = deltas[..., self.entries // columns]  # (..., T, D)
            return (left * inputs[..., self.entries % columns]).sum(-2)
        return self.grid().flatten(-2)[..., self.entries]

    def grid(self) -> Tensor:
        """J of the whole block, (..., n, m)."""
        kind = torch.promote_types(self.deltas.dtype, self.inputs.dtype)
        return self.deltas.mT.to(kind) @ self.inputs.to(kind)

    def parts(self, numbers: int) -> Iterator[Jacobian]:
        """Split the examples (..., B, T, ·) into parts whose J has about `numbers` entries."""
        positions, rows, columns = *self.deltas.shape[-2:], self.inputs.shape[-1]
        size = rows * columns
        if self.entries is not None:
            # As `flat` forms them: entry by entry if that is less than the whole grid.
            size = min(size, len(self.entries) * positions)
        directions = self.deltas.shape[:-3].numel()
        count = max(1, numbers // max(1, size * directions))
        for start in range(0, len(self.features), count):
            yield self.examples(slice(start, start + count))

    def examples(self, some: slice) -> Jacobian:
        """Keep some of the examples."""
        return Jacobian(
            self.deltas[..., some, :, :], self.features[some], self.bias, self.entries
        )

    def restricted(self, rows: Tensor | None, columns: Tensor | None) -> Jacobian:
        """Keep some of the rows and columns, the bias counted as the first; None keeps all."""
        deltas = self.deltas if rows is None else self.deltas[..., rows]
        if columns is None:
            return Jacobian(deltas, self.features, self.bias, self.entries, self.grams)
        bias = self.bias and bool((columns == 0).any())
        chosen = columns[columns > 0] - 1 if self.bias else columns
        return Jacobian(deltas, self.features[..., chosen], bias, self.entries)

    def products(self) -> Tensor:
        """Inner products of the K directions' Jacobians, deltas (K, B, T, n): (B, K, K)."""
        kept = self.without_idle_positions()
        if kept.entries is None and kept.prefers_gram():
            return pair_by_gram(kept.deltas, kept.gram())
        return torch.cat([pair_flat(part.flat()) for part in kept.parts(NUMBERS_AT_ONCE)])

    def gram(self) -> Tensor:
        """Inner products x_t·x_t' of the inputs at every two positions, (B, T, T)."""
        x = self.features
        place = (x.data_ptr(), x.shape, x.stride(), self.bias)
        if place not in self.grams:
            # With the features, so that no others come to lie in their place.
            self.grams[place] = x, x @ x.mT + 1 if self.bias else x @ x.mT
        return self.grams[place][1]

    def prefers_gram(self) -> bool:
        """Whether two T × T matrices cost less than the Jacobians themselves."""
        count, positions, rows = len(self.deltas), *self.deltas.shape[-2:]
        columns = self.features.shape[-1] + self.bias
        gram = positions**2 * (columns + count * rows) + count**2 * positions * rows
        return gram <= count * rows * columns * (positions + count)

    def without_idle_positions(self) -> Jacobian:
        """Leave out positions that no output of the batch depends on."""
        # Above the last attention of a classifier that reads one token there are T − 1 of them.
        positions = self.deltas.shape[-2]
        # One row of δ tells most often that there are too few to gain anything.
        if positions == 1 or 2 * int(_reached(self.deltas[..., :1]).sum()) > positions:
            return self
        where = _reached(self.deltas).nonzero().flatten()
        if 2 * len(where) > positions:
            return self
        where = where if len(where) else where.new_zeros(1)
        return Jacobian(
            self.deltas[..., where, :], self.features[:, where], self.bias, self.entries
        )


def _reached(deltas: Tensor) -> Tensor:
    """Which positions have a δ (K, B, T, n) that is not zero, (T,)."""
    return deltas.ne(0).any(-1).any(0).any(0)


def pair_flat(flat: Tensor) -> Tensor:
    """Inner products of vectors (K, B, D) of the same example: (B, K, K)."""
    if len(flat) == 1:
        return flat[0].square().sum(-1)[:, None, None]
    by_example = flat.transpose(0, 1)
    return by_example @ by_example.mT


def pair_by_gram(deltas: Tensor, gram: Tensor) -> Tensor:
    """Σ_tt' (δ_t·δ'_t') X_tt' for deltas (K, B, T, n) and X (B, T, T): (B, K, K)."""
    count, batch, positions, rows = deltas.shape
    gram = gram.to(deltas.dtype)
    if count == 1:
        own = deltas[0] @ deltas[0].mT  # (B, T, T)
        return (own * gram).sum((1, 2))[:, None, None]
    # Products with X first: the cost grows with the directions, not with their pairs.
    side = deltas.permute(1, 2, 0, 3).reshape(batch, positions, count * rows)
    seen = (gram @ side).reshape(batch, positions, count, rows).permute(0, 2, 1, 3)
    by_example = deltas.transpose(0, 1).flatten(2)  # (B, K, T·n)
    return by_example @ seen.flatten(2).mT


def hook_gradient(
    out: Tensor, receive: Callable[[Tensor], None], is_missing: Callable[[], bool]
) -> None:
    """Have the gradient of a layer's output received, whatever the model does to the output."""
    out.register_hook(receive)
    # A model that adds to a view in place takes its hook off, and F.linear gives a view of
    # (B·T, n). What it is a view of keeps its own, which runs later.
    base, shape = out._base, out.shape
    if base is None or base.numel() != out.numel() or not out.is_contiguous():
        return

    def receive_missing(gradient: Tensor) -> None:
        if is_missing():
            receive(gradient.reshape(shape))

    if base.requires_grad:
        base.register_hook(receive_missing)
