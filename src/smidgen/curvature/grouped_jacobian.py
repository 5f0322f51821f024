"""`GroupedJacobian`: that of a layer whose rows have inputs of their own, group by group.

Row i of J is Σ_t δ_ti x_tg for its group g. Groups are multiplied at once, those with fewer
chosen rows filled up with zeros: a depthwise convolution has as many groups as channels.

Shapes as in `jacobian`, and G groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from smidgen.curvature.jacobian import Jacobian


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupedJacobian(Jacobian):
    """J as output gradients (..., B, T, n), features (B, T, G, f), and each row's group (n,)."""

    groups: Tensor

    def rotated(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Write J in a basis of rows (n, k) and columns (m, l): (..., k·l)."""
        inputs = self.inputs.to(rows.dtype) @ columns
        grid = self._contract(self.deltas.to(rows.dtype), inputs)
        return (rows.mT @ grid).flatten(-2)

    def grid(self) -> Tensor:
        """J of the whole block, (..., n, m)."""
        kind = torch.promote_types(self.deltas.dtype, self.inputs.dtype)
        return self._contract(self.deltas.to(kind), self.inputs.to(kind))

    def flat(self) -> Tensor:
        """Write J in the weights themselves: (..., D)."""
        grid = self.grid().flatten(-2)
        return grid if self.entries is None else grid[..., self.entries]

    def _contract(self, deltas: Tensor, inputs: Tensor) -> Tensor:
        count, order = inputs.shape[2], self.groups.argsort(stable=True)
        sizes = self.groups.bincount(minlength=count)
        most = int(sizes.max())
        # Where each row stands among those of its group.
        ranks = torch.arange(len(order), device=order.device)
        starts = (sizes.cumsum(0) - sizes)[self.groups[order]]
        places = torch.empty_like(order)
        places[order] = self.groups[order] * most + ranks - starts
        filled = deltas.new_zeros(*deltas.shape[:-1], count * most)
        filled[..., places] = deltas
        by_group = filled.unflatten(-1, (count, most)).movedim(-3, -1)  # (..., B, G, r, T)
        grid = by_group @ inputs.transpose(1, 2)  # (..., B, G, r, m)
        return grid.flatten(-3, -2)[..., places, :]

    def examples(self, some: slice) -> Jacobian:
        """Keep some of the examples."""
        deltas, features = self.deltas[..., some, :, :], self.features[some]
        return replace(self, deltas=deltas, features=features)

    def restricted(self, rows: Tensor | None, columns: Tensor | None) -> Jacobian:
        """Keep some of the rows and columns, the bias counted as the first; None keeps all."""
        plain = super().restricted(rows, columns)
        groups = self.groups if rows is None else self.groups[rows.to(self.groups.device)]
        fields = plain.deltas, plain.features, plain.bias, plain.entries
        return GroupedJacobian(*fields, groups=groups)

    def prefers_gram(self) -> bool:
        """Positions of several groups have no product."""
        return False

    def without_idle_positions(self) -> Jacobian:
        """Keep all: it is for products of positions."""
        return self
