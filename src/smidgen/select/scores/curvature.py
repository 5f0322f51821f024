"""The geometric mean of a weight's two KFAC diagonals, √(G_ii A_jj).

It is the root of the diagonal of G ⊗ A: how far the outputs move with the weight, input
size times output gradient. n + m sums for each layer, never a full factor. A bias has the
input 1, so A_jj = 1 and its score is √G_ii.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from smidgen.curvature.factors.factor_diagonals import DiagonalAccumulator
from smidgen.curvature.kronecker import APPROXIMATIONS, Approximation
from smidgen.curvature.taps import Tapped
from smidgen.errors import ArgumentError
from smidgen.outputs.problem import Problem, SettledProblem
from smidgen.select.scores.passes import run_pass, score_layers
from smidgen.types import Batch


def curvature(
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    *,
    approximation: Approximation = "reduce",
    progress: bool = True,
) -> dict[str, Tensor]:
    """Score every weight and bias by the diagonals of the factors A and G.

    A forward pass and C − 1 backward passes, as a Laplace fit.

    Args:
        model: The trained model, or a `Problem` that says how to read its batches.
        batches: Any iterable of batches, read once; classification needs no labels.
        approximation: How positions that share weights are treated, as in a fit.
        progress: Show a progress bar.

    Returns:
        Scores by parameter name.

    Raises:
        ArgumentError: If the approximation is unknown.
    """
    if approximation not in APPROXIMATIONS:
        raise ArgumentError(
            f"approximation must be one of {APPROXIMATIONS}, got {approximation!r}."
        )

    def visit(
        problem: SettledProblem, taps: Tapped, batches: Iterable[Batch]
    ) -> dict[str, Tensor]:
        sums = DiagonalAccumulator(problem, list(taps.blocks.values()), approximation)
        products = run_pass(sums, taps, batches)
        return {name: values.sqrt() for name, values in products.items()}

    return score_layers(model, batches, visit, progress=progress)
