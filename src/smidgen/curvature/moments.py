"""Second moments of Jacobians in a basis: the diagonal of the exact GGN in it.

h_d = Σ J'_d² over examples and columns, with J' = Σ_t δ_t x_tᵀ in the basis. The positions
of an example are summed before anything is squared, so the question of expand or reduce
does not arise. In the eigenbasis of the factors that is EKFAC (George et al., 2018,
arXiv:1806.03884), in the weights themselves the diagonal GGN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from smidgen.curvature.accumulate import Accumulator, BackwardVectors
from smidgen.curvature.base import Operator
from smidgen.curvature.operators import Diagonal, Eigenbasis
from smidgen.curvature.taps import Trace
from smidgen.outputs.problem import SettledProblem
from smidgen.weights.blocks import LayerBlock

# Few enough to stay in a processor's cache: squaring is bound by memory.
_NUMBERS_AT_ONCE = 2**19


class MomentAccumulator(Accumulator):
    """Running sums of J'² for all blocks, each in the basis of an operator."""

    def __init__(
        self,
        problem: SettledProblem,
        blocks: Sequence[LayerBlock],
        bases: Mapping[str, Operator],
        columns: BackwardVectors | None = None,
    ) -> None:
        super().__init__(problem, blocks, columns)
        self.bases = bases
        zero = torch.zeros((), dtype=torch.float64, device=problem.device)
        self.moments = {block.layer.name: zero.new_zeros(block.size) for block in blocks}

    def add_deltas(self, trace: Trace, deltas: dict[str, Tensor]) -> None:
        """Add the squared coordinates of every example's Jacobian."""
        for name, delta in deltas.items():
            total = self.moments[name].new_zeros((), dtype=delta.dtype)
            for part in trace.jacobian(name, delta).parts(_NUMBERS_AT_ONCE):
                coordinates = self.bases[name].coordinates(part)  # (B', D)
                total = total + coordinates.square_().sum(0)
            self.moments[name] += total.double()

    def running(self) -> list[Tensor]:
        """List the moments of all blocks."""
        return list(self.moments.values())

    def operators(self, scale: float) -> dict[str, Operator]:
        """Keep each basis and the moments measured in it."""
        return {name: self._operator(name, scale) for name in self.names}

    def _operator(self, name: str, scale: float) -> Operator:
        basis, moments = self.bases[name], self.moments[name] * scale
        if isinstance(basis, Diagonal):
            return Diagonal(moments)
        return Eigenbasis(basis.row_vectors, basis.column_vectors, moments)  # type: ignore[attr-defined]


def weight_basis(blocks: Sequence[LayerBlock], like: Tensor) -> dict[str, Operator]:
    """Use each layer's weights as its basis, in the type and on the device of a tensor."""
    return {block.layer.name: Diagonal(like.new_zeros(block.size)) for block in blocks}
