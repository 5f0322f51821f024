"""What scores from data share: one pass over the batches, and numbers put in their place.

Maps that no posterior could treat, because they mix the examples of a batch, score zero: a
warning names them. So do maps that never run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from smidgen.curvature.accumulate import Sums, accumulate
from smidgen.curvature.batch_check import mixing_maps
from smidgen.errors import SmidgenWarning
from smidgen.outputs.problem import Problem, as_problem
from smidgen.runtime.guard import untouched
from smidgen.runtime.progress import track
from smidgen.types import Batch
from smidgen.weights.affine import affine_coverage
from smidgen.weights.blocks import MapBlock, blocks
from smidgen.weights.subset import Subset, Whole

Visit = Callable[[Problem, Sequence[MapBlock], Iterable[Batch]], Mapping[str, Tensor]]
"""Reads all batches and returns a number for each weight of a block, by map name."""


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
        Scores of every parameter of the affine maps.
    """
    given = as_problem(model)
    universe = affine_coverage(given.model).universe
    chosen = blocks(given.model, Subset(universe, {name: Whole() for name in universe}))
    with untouched(given.model):
        problem, first, everything = given.settled(track(batches, "scoring", show=progress))
        mixing = mixing_maps(problem, first, chosen)
        if mixing:
            warnings.warn(
                f"{len(mixing)} maps score zero: {', '.join(list(mixing)[:3])}. "
                f"{next(iter(mixing.values()))}",
                SmidgenWarning,
                stacklevel=3,
            )
        kept = tuple(block for block in chosen if block.map.name not in mixing)
        found = visit(problem, kept, everything)
    return spread(given.model, kept, found)


def summed(
    sums: Sums, problem: Problem, chosen: Sequence[MapBlock], batches: Iterable[Batch]
) -> dict[str, Tensor]:
    """Run the pass of some sums and return what they found of each map's weights."""
    found = accumulate(sums, problem, batches, chosen).finish()
    return {name: operator.values for name, operator in found.operators.items()}


def spread(
    model: nn.Module, chosen: Sequence[MapBlock], values: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Write a number for each weight of some blocks into parameters, zero elsewhere.

    Args:
        model: The model.
        chosen: The blocks.
        values: Numbers for each block, in the order of its weights, by map name.

    Returns:
        A tensor for every parameter of the affine maps, fp64 on the CPU.
    """
    universe = affine_coverage(model).universe
    found = {n: torch.zeros(shape, dtype=torch.float64) for n, shape in universe.items()}
    for block in chosen:
        found.update(block.spread(values[block.map.name].double().cpu()))
    return found
