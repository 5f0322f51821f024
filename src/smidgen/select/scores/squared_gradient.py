"""Squared gradients of the loss at the true labels, the diagonal of the empirical Fisher.

Σ over examples of (∂(−log p(y | x))/∂W_ij)². Positions and tokens of an example are summed
before anything is squared. For regression the loss is that of unit noise, which scales all
scores alike.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from smidgen.curvature.accumulate import gradients
from smidgen.curvature.moments import MomentAccumulator, weight_basis
from smidgen.curvature.taps import Tapped
from smidgen.outputs.problem import Problem, SettledProblem
from smidgen.select.scores.passes import run_pass, score_layers
from smidgen.types import Batch


def squared_gradient(
    model: nn.Module | Problem, batches: Iterable[Batch], *, progress: bool = True
) -> dict[str, Tensor]:
    """Score every weight and bias by its squared gradients, summed over examples.

    One forward and one backward pass; gradients by example are kept for one batch only.

    Args:
        model: The trained model, or a `Problem` that says how to read its batches.
        batches: Labelled batches, any iterable, read once.
        progress: Show a progress bar.

    Returns:
        Scores by parameter name.
    """
    return score_layers(model, batches, _visit, progress=progress)


def _visit(
    problem: SettledProblem, taps: Tapped, batches: Iterable[Batch]
) -> dict[str, Tensor]:
    blocks = list(taps.blocks.values())
    bases = weight_basis(blocks, torch.empty(0, device=problem.device))
    sums = MomentAccumulator(problem, blocks, bases, gradients(problem.likelihood))
    return run_pass(sums, taps, batches)
