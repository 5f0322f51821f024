"""Which passes over the data make each structure: what is summed in each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from smidgen.curvature.accumulate import Accumulator
from smidgen.curvature.dense import DenseAccumulator
from smidgen.curvature.ggn_roots import BackwardVectors
from smidgen.curvature.kronecker import Approximation, KroneckerAccumulator
from smidgen.curvature.moments import MomentAccumulator, weight_basis
from smidgen.curvature.operators import Dense, Diagonal, Eigenbasis, Kronecker, Operator
from smidgen.outputs.problem import SettledProblem
from smidgen.weights.blocks import LayerBlock


@dataclass(frozen=True, eq=False)
class PassInputs:
    """What a pass is about; `operators` are those that the pass before it made."""

    problem: SettledProblem
    blocks: Sequence[LayerBlock]
    vectors: BackwardVectors
    approximation: Approximation
    operators: Mapping[str, Operator]

    def after(self, operators: Mapping[str, Operator]) -> PassInputs:
        """What the pass after one is about that made such operators."""
        return replace(self, operators=operators)

    def factors(self) -> Accumulator:
        """Sum the two Kronecker factors of each layer."""
        return KroneckerAccumulator(
            self.problem, self.blocks, self.approximation, self.vectors
        )

    def moments_in_basis(self) -> Accumulator:
        """Sum second moments in the factors' eigenbasis."""
        return MomentAccumulator(self.problem, self.blocks, self.operators, self.vectors)

    def moments_of_weights(self) -> Accumulator:
        """Sum second moments weight by weight."""
        kind, device = self.problem.working_type, self.problem.device
        basis = weight_basis(self.blocks, torch.empty(0, dtype=kind, device=device))
        return MomentAccumulator(self.problem, self.blocks, basis, self.vectors)

    def whole_matrix(self) -> Accumulator:
        """Sum one matrix over all layers."""
        return DenseAccumulator(self.problem, self.blocks, self.vectors)


PASSES: dict[str, tuple[Callable[[PassInputs], Accumulator], ...]] = {
    Kronecker.structure: (PassInputs.factors,),
    Eigenbasis.structure: (PassInputs.factors, PassInputs.moments_in_basis),
    Diagonal.structure: (PassInputs.moments_of_weights,),
    Dense.structure: (PassInputs.whole_matrix,),
}
"""The passes of each structure, in their order."""
