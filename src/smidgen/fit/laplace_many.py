"""Many subsets from one pass: factors of a smaller block are principal blocks.

An entry of G or of A does not depend on which others were chosen, so the factors of the
smallest block around several hold those of each (DESIGN 4.4). Only the eigenvalue
decompositions are made anew.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from torch import nn

from smidgen.curvature.accumulate import accumulate
from smidgen.curvature.base import Operator
from smidgen.curvature.factors.operator import Kronecker
from smidgen.curvature.kronecker import KroneckerAccumulator
from smidgen.curvature.output_layers import check_last_layer
from smidgen.curvature.taps import tapped
from smidgen.errors import ArgumentError, fill_settings, require_kind
from smidgen.fit.laplace import (
    LaplaceSettings,
    cast_operators,
    check_fit,
    keep_separable_layers,
    make_posterior,
)
from smidgen.outputs.batches import as_batches
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.variance_table import hulls, positions_in
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.processes.sharded_rows import read_each_once
from smidgen.runtime.progress import track
from smidgen.types import Batch, Reduce
from smidgen.weights.affine.share import warn_of_little_covered
from smidgen.weights.blocks import LayerBlock, find_blocks, restrict_subset
from smidgen.weights.subset import Subset, check_subset

Name = TypeVar("Name", bound=Hashable)


def laplace_many(
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    subsets: Mapping[Name, Subset],
    *,
    precision: float = 1.0,
    settings: LaplaceSettings | None = None,
    reduce: Reduce | None = None,
    progress: bool = True,
) -> dict[Name, LaplacePosterior]:
    """Fit a Kronecker-factored posterior to each of several subsets, in one pass.

    Args:
        model: The trained model, or its `Problem`.
        batches: Training batches, any iterable, read once.
        subsets: The subsets by name; cheapest when they are nested.
        precision: Prior precision τ, to be calibrated afterwards.
        settings: How the curvature is measured; the noise of a regression is a scalar.
        reduce: As in `laplace`.
        progress: Show progress bars.

    Returns:
        A posterior for each subset, equal to one fitted to it alone.

    Raises:
        ArgumentError: If there is no subset, or a noise for each output is asked for.
    """
    settings = fill_settings(settings, LaplaceSettings)
    require_kind("subsets", subsets, Mapping, "Give each a name: {10: subset, ...}")
    if not subsets:
        raise ArgumentError(
            "subsets must hold at least one subset, got none. Use smidgen.select."
        )
    for subset in subsets.values():
        check_subset(subset)
    if settings.noise != "scalar":
        raise ArgumentError(
            f"noise must be 'scalar' for several subsets, got {settings.noise!r}. Use "
            "smidgen.fit.laplace for each."
        )
    batches = read_each_once(as_batches(batches), reduce)
    problem = as_problem(model)
    blocks = {name: find_blocks(problem.model, s) for name, s in subsets.items()}
    # All of them come from the same layers.
    warn_of_little_covered(problem.model, next(iter(subsets.values())))
    all_blocks = [block for chosen in blocks.values() for block in chosen]
    check_fit(problem.model, Kronecker.structure, precision, all_blocks)
    with preserve_random_state(problem.model):
        first, data = problem.read_first(track(batches, "fitting", show=progress))
        for subset in subsets.values():
            if subset.claims_last:
                check_last_layer(problem, first, subset)
        with tapped(problem, hulls(list(blocks.values()))) as taps:
            around = keep_separable_layers(taps, problem, first)
            problem = problem.with_likelihood(taps.likelihood)
            vectors = settings.backward_vectors(problem.likelihood)
            sums = KroneckerAccumulator(
                problem, around, settings.approximation, vectors, rank=settings.rank
            )
            accumulate(sums, taps, data, reduce)
        curvatures = sums.finish(settings.num_data, decompose=False)
    first_subset = next(iter(subsets.values()))
    base = make_posterior(problem, first_subset, curvatures, precision, settings)
    return {
        name: _restrict(base, problem, sums, around, subsets[name], blocks[name])
        for name in track(list(subsets), "decomposing", show=progress)
    }


def _restrict(
    base: LaplacePosterior,
    problem: SettledProblem,
    sums: KroneckerAccumulator,
    around: Sequence[LayerBlock],
    subset: Subset,
    blocks: Sequence[LayerBlock],
) -> LaplacePosterior:
    """The posterior of one subset: principal blocks of the factors around it."""
    tapped = {block.layer.name: block for block in around}
    blocks = [block for block in blocks if block.layer.name in tapped]
    operators: dict[str, Operator] = {}
    for block in blocks:
        name = block.layer.name
        rows, columns = positions_in(tapped[name], block)
        scale = base.num_data / sums.seen
        decomposed: dict[str, Operator] = {name: sums.decompose(name, scale, rows, columns)}
        operators |= cast_operators(decomposed, problem)
    return replace(base, subset=restrict_subset(subset, blocks), operators=operators)
