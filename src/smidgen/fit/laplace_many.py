"""Many subsets from one pass: factors of a smaller block are principal blocks.

An entry of G or of A does not depend on which others were chosen, so the factors of the
smallest block around several hold those of each (DESIGN 4.4). Only the eigenvalue
decompositions are made anew.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from smidgen.curvature.accumulate import accumulate
from smidgen.curvature.ggn_roots import exact_ggn, sampled_fisher
from smidgen.curvature.kronecker import Approximation, KroneckerAccumulator
from smidgen.curvature.operators import Kronecker
from smidgen.errors import ArgumentError
from smidgen.fit.preparation import (
    check_numbers,
    log_likelihood,
    mention_idle,
    refuse_bad_weights,
    refuse_scattered,
    restricted,
    with_noise,
    without_mixing,
)
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.variance_table import hulls, positions_in
from smidgen.runtime.fingerprint import fingerprint
from smidgen.runtime.guard import preserve_model
from smidgen.runtime.progress import track
from smidgen.types import Batch, Reduce
from smidgen.weights.blocks import LayerBlock, find_blocks
from smidgen.weights.subset import Subset

Name = TypeVar("Name", bound=Hashable)


def laplace_many(
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    subsets: Mapping[Name, Subset],
    *,
    precision: float = 1.0,
    approximation: Approximation = "reduce",
    fisher_draws: int | None = None,
    generator: torch.Generator | None = None,
    num_data: int | None = None,
    reduce: Reduce | None = None,
    progress: bool = True,
) -> dict[Name, LaplacePosterior]:
    """Fit a Kronecker-factored posterior to each of several subsets, in one pass.

    Args:
        model: The trained model, or its `Problem`.
        batches: Training batches, any iterable, read once.
        subsets: The subsets by name; cheapest when they are nested.
        precision: Prior precision τ, to be tuned afterwards.
        approximation: How positions that share weights are treated.
        fisher_draws: Draw this many labels in place of the exact GGN.
        generator: Source of those draws; a fixed seed if left out.
        num_data: Size of the whole data set if `batches` is a sample of it.
        reduce: As in `laplace`.
        progress: Draw progress bars; in a log, a line a minute.

    Returns:
        A posterior for each subset, equal to one fitted to it alone.

    Raises:
        ArgumentError: If there is no subset.
    """
    if not subsets:
        raise ArgumentError("subsets must hold at least one subset, got none.")
    check_numbers(approximation, precision)
    given = as_problem(model)
    refuse_bad_weights(given.model)
    chosen = {name: find_blocks(given.model, each) for name, each in subsets.items()}
    for each in chosen.values():
        refuse_scattered(Kronecker, each)
    with preserve_model(given.model):
        followed = track(batches, "fitting", show=progress)
        problem, first, everything = given.settle(followed)
        columns = exact_ggn(problem.likelihood)
        if fisher_draws is not None:
            columns = sampled_fisher(problem.likelihood, fisher_draws, generator)
        around = without_mixing(problem, first, hulls(list(chosen.values())))
        sums = KroneckerAccumulator(problem, around, approximation, columns)
        accumulate(sums, problem, everything, around, reduce)
        found = sums.finish(num_data, decompose=False)
    mention_idle(found)
    likelihood = with_noise(problem.likelihood, found)
    like = torch.empty(0, dtype=given.working_type, device=problem.device)
    base = LaplacePosterior(
        subset=next(iter(subsets.values())),
        likelihood=likelihood,
        operators={},
        precision=precision,
        fingerprint=fingerprint(given.model),
        num_data=found.num_data,
        approximation=approximation,
        log_likelihood=log_likelihood(likelihood, found),
    )
    return {
        name: _restricted(base, sums, around, subsets[name], chosen[name], like)
        for name in track(list(subsets), "decomposing", show=progress)
    }


def _restricted(
    base: LaplacePosterior,
    sums: KroneckerAccumulator,
    around: Sequence[LayerBlock],
    subset: Subset,
    chosen: Sequence[LayerBlock],
    like: Tensor,
) -> LaplacePosterior:
    """The posterior of one subset: principal blocks of the factors around it."""
    tapped = {block.layer.name: block for block in around}
    kept = [block for block in chosen if block.layer.name in tapped]
    operators = {}
    for block in kept:
        name = block.layer.name
        gradient, inputs = sums.factors(name, base.num_data / sums.seen)
        rows, columns = positions_in(tapped[name], block)
        if rows is not None:
            gradient = gradient[rows][:, rows]
        if columns is not None:
            inputs = inputs[columns][:, columns]
        found = Kronecker.from_factors(gradient, inputs)
        operators[name] = found.to(like.dtype, like.device)
    return replace(base, subset=restricted(subset, kept), operators=operators)
