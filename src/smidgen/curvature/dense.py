"""The whole GGN of a small subset, over all its layers together.

H = Σ J Jᵀ over examples and columns, with J the chosen weights' derivatives of all layers
side by side: D numbers an example, never the width of the model. Nothing is approximated
but the GGN itself, at D² floats and D³ operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from smidgen.curvature.accumulate import Accumulator, BackwardVectors
from smidgen.curvature.base import Operator
from smidgen.curvature.factors.factor_sum import gram
from smidgen.curvature.operators import JOINT, Dense
from smidgen.curvature.taps import Trace
from smidgen.outputs.problem import SettledProblem
from smidgen.weights.blocks import LayerBlock


class DenseAccumulator(Accumulator):
    """Running sum of J Jᵀ over the chosen weights of all blocks."""

    def __init__(
        self,
        problem: SettledProblem,
        blocks: Sequence[LayerBlock],
        columns: BackwardVectors | None = None,
    ) -> None:
        super().__init__(problem, blocks, columns)
        size = sum(block.size for block in blocks)
        self.matrix = torch.zeros(size, size, dtype=torch.float64, device=problem.device)

    def add_deltas(self, trace: Trace, deltas: dict[str, Tensor]) -> None:
        """Add J Jᵀ of every example."""
        jacobians = [
            trace.jacobian(name, deltas[name])
            if name in deltas
            else trace.without_runs(name, (trace.examples,))
            for name in self.names
        ]
        flat = torch.cat([jacobian.flat() for jacobian in jacobians], -1)  # (B, D)
        self.matrix += gram(flat.double())

    def running(self) -> list[Tensor]:
        """List the one matrix."""
        return [self.matrix]

    def witnesses(self) -> list[Tensor]:
        """The diagonal is enough: |H_ij| is at most √(H_ii H_jj)."""
        return [self.matrix.diagonal()]

    def operators(self, scale: float) -> dict[str, Operator]:
        """Decompose the matrix."""
        return {JOINT: Dense.from_matrix(self.matrix * scale)}
