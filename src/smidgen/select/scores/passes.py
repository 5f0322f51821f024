"""How scores are made from data: one pass over the batches, scattered into parameters.

Layers that no posterior could treat, because they mix the examples of a batch, score zero: a
warning names them. So do layers that never run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from smidgen.curvature.accumulate import Accumulator, accumulate
from smidgen.curvature.ggn_roots import find_mixing_layers
from smidgen.errors import SmidgenWarning
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.runtime.guard import preserve_model
from smidgen.runtime.progress import track
from smidgen.types import Batch
from smidgen.weights.affine import require_coverage
from smidgen.weights.blocks import LayerBlock, find_blocks
from smidgen.weights.subset import Subset, Whole

Visit = Callable[
    [SettledProblem, Sequence[LayerBlock], Iterable[Batch]], Mapping[str, Tensor]
]
"""Reads all batches and returns a number for each weight of a block, by layer name."""


def score_layers(
    model: nn.Module | Problem, batches: Iterable[Batch], visit: Visit, *, progress: bool
) -> dict[str, Tensor]:
    """Run one pass over the data and make scores of what it finds.

    Args:
        model: The trained model, or a `Problem` that says how to read its batches.
        batches: Any iterable of batches, read once.
        visit: The pass.
        progress: Draw a progress bar; in a log, a line a minute.

    Returns:
        Scores of every parameter of the affine layers.
    """
    problem = as_problem(model)
    universe = require_coverage(problem.model).universe
    whole = Subset(universe, {name: Whole() for name in universe})
    blocks = find_blocks(problem.model, whole)
    with preserve_model(problem.model):
        shown = track(batches, "scoring", show=progress)
        settled, first, everything = problem.settle(shown)
        mixing = find_mixing_layers(settled, first, blocks)
        if mixing:
            warnings.warn(
                f"{len(mixing)} layers score zero: {', '.join(list(mixing)[:3])}. "
                f"{next(iter(mixing.values()))}",
                SmidgenWarning,
                stacklevel=3,
            )
        blocks = tuple(block for block in blocks if block.layer.name not in mixing)
        values = visit(settled, blocks, everything)
    return scatter_scores(problem.model, blocks, values)


def run_pass(
    sums: Accumulator,
    problem: SettledProblem,
    blocks: Sequence[LayerBlock],
    batches: Iterable[Batch],
) -> dict[str, Tensor]:
    """Run a pass of the data into an accumulator; return a number for each weight."""
    curvatures = accumulate(sums, problem, batches, blocks).finish()
    return {name: operator.values for name, operator in curvatures.operators.items()}


def scatter_scores(
    model: nn.Module, blocks: Sequence[LayerBlock], values: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Write a number for each weight of some blocks into parameters, zero elsewhere.

    Args:
        model: The model.
        blocks: The blocks.
        values: Numbers for each block, in the order of its weights, by layer name.

    Returns:
        A tensor for every parameter of the affine layers, fp64 on the CPU.
    """
    universe = require_coverage(model).universe
    scores = {n: torch.zeros(shape, dtype=torch.float64) for n, shape in universe.items()}
    for block in blocks:
        scores.update(block.scatter(values[block.layer.name].double().cpu()))
    return scores
