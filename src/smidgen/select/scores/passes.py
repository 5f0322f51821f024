"""How scores are made from data: one pass over the batches, scattered into parameters.

Layers that mix the examples of a batch, which no posterior can treat, score zero, and a
warning names them. Layers that never run score zero, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from smidgen.curvature.accumulate import Accumulator, accumulate, drop_mixing_layers
from smidgen.curvature.taps import Tapped, tapped
from smidgen.errors import warn
from smidgen.outputs.batches import as_batches
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.processes.sharded_rows import refuse_shard
from smidgen.runtime.progress import track
from smidgen.types import Batch
from smidgen.weights.affine import require_coverage
from smidgen.weights.blocks import LayerBlock, find_blocks
from smidgen.weights.subset import Subset, Whole

Visit = Callable[[SettledProblem, Tapped, Iterable[Batch]], Mapping[str, Tensor]]
"""Runs all batches and returns a number for each weight of a tapped block, by layer name."""


def score_layers(
    model: nn.Module | Problem, batches: Iterable[Batch], visit: Visit, *, progress: bool
) -> dict[str, Tensor]:
    """Score every parameter of the affine layers in one pass over the data."""
    batches = as_batches(batches)
    refuse_shard(batches)
    problem = as_problem(model)
    universe = require_coverage(problem.model).universe
    whole = Subset(universe, {name: Whole() for name in universe})
    blocks = find_blocks(problem.model, whole)
    with preserve_random_state(problem.model):
        first, data = problem.read_first(track(batches, "scoring", show=progress))
        with tapped(problem, blocks) as taps:
            mixing = drop_mixing_layers(taps, problem, first)
            if mixing:
                warn(
                    f"{len(mixing)} layers score zero: {', '.join(list(mixing)[:3])}. "
                    f"{next(iter(mixing.values()))}"
                )
            values = visit(problem.with_likelihood(taps.likelihood), taps, data)
            return scatter_scores(problem.model, list(taps.blocks.values()), values)


def run_pass(
    sums: Accumulator, taps: Tapped, batches: Iterable[Batch]
) -> dict[str, Tensor]:
    """Run a pass of the data into an accumulator; return a number for each weight."""
    curvatures = accumulate(sums, taps, batches).finish()
    return {name: operator.values for name, operator in curvatures.operators.items()}


def scatter_scores(
    model: nn.Module, blocks: Sequence[LayerBlock], values: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Write values by weight of each block into fp64 parameters on the CPU, zero elsewhere."""
    universe = require_coverage(model).universe
    scores = {n: torch.zeros(shape, dtype=torch.float64) for n, shape in universe.items()}
    for block in blocks:
        scores.update(block.scatter(values[block.layer.name].double().cpu()))
    return scores
