"""What scores from data share: one pass over the batches, and numbers put in their place.

Layers that no posterior could treat, because they mix the examples of a batch, score zero: a
warning names them. So do layers that never run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from smidgen.curvature.accumulate import Accumulator, accumulate
from smidgen.curvature.batch_check import find_mixing_layers
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


def scored(
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
    given = as_problem(model)
    universe = require_coverage(given.model).universe
    chosen = find_blocks(
        given.model, Subset(universe, {name: Whole() for name in universe})
    )
    with preserve_model(given.model):
        problem, first, everything = given.settle(track(batches, "scoring", show=progress))
        mixing = find_mixing_layers(problem, first, chosen)
        if mixing:
            warnings.warn(
                f"{len(mixing)} layers score zero: {', '.join(list(mixing)[:3])}. "
                f"{next(iter(mixing.values()))}",
                SmidgenWarning,
                stacklevel=3,
            )
        kept = tuple(block for block in chosen if block.layer.name not in mixing)
        found = visit(problem, kept, everything)
    return spread(given.model, kept, found)


def summed(
    sums: Accumulator,
    problem: SettledProblem,
    chosen: Sequence[LayerBlock],
    batches: Iterable[Batch],
) -> dict[str, Tensor]:
    """Run the pass of some sums and return what they found of each layer's weights."""
    found = accumulate(sums, problem, batches, chosen).finish()
    return {name: operator.values for name, operator in found.operators.items()}


def spread(
    model: nn.Module, chosen: Sequence[LayerBlock], values: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Write a number for each weight of some blocks into parameters, zero elsewhere.

    Args:
        model: The model.
        chosen: The blocks.
        values: Numbers for each block, in the order of its weights, by layer name.

    Returns:
        A tensor for every parameter of the affine layers, fp64 on the CPU.
    """
    universe = require_coverage(model).universe
    found = {n: torch.zeros(shape, dtype=torch.float64) for n, shape in universe.items()}
    for block in chosen:
        found.update(block.scatter(values[block.layer.name].double().cpu()))
    return found
