"""`Jacobian`: the derivative of an output in one block's weights, kept as two thin sides.

J = Σ_t δ_t x_tᵀ over the positions t of an example. It is never formed before it has been
rotated or restricted to the chosen entries, so its cost is that of the subset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


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
