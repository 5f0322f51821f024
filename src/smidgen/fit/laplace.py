"""Laplace: a Gaussian at the trained weights whose precision is the curvature plus τ.

With the exact generalised Gauss–Newton matrix, one block per affine layer, restricted to the
subset before anything is multiplied: Kronecker-factored that is Sparse-KFAC (DESIGN 4.2,
4.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from smidgen.curvature.accumulate import Accumulator, accumulate
from smidgen.curvature.dense import DenseAccumulator
from smidgen.curvature.ggn_roots import BackwardVectors, exact_ggn, sampled_fisher
from smidgen.curvature.kronecker import Approximation, KroneckerAccumulator
from smidgen.curvature.moments import MomentAccumulator, weight_basis
from smidgen.curvature.operators import STRUCTURES
from smidgen.errors import ArgumentError, DataError, StructureError
from smidgen.fit.preparation import (
    check_numbers,
    log_likelihood,
    mention_idle,
    refuse_bad_weights,
    refuse_scattered,
    restricted,
    squared_residuals,
    with_noise,
    without_mixing,
)
from smidgen.outputs.likelihood import Gaussian
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.posterior.cost import refuse_too_large
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.runtime.fingerprint import fingerprint
from smidgen.runtime.guard import preserve_model
from smidgen.runtime.progress import track
from smidgen.types import Batch, Reduce
from smidgen.weights.blocks import LayerBlock, find_blocks
from smidgen.weights.subset import Subset

Noise = Literal["scalar", "per-output"]


def laplace(
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    subset: Subset,
    *,
    structure: str = "kron",
    precision: float = 1.0,
    approximation: Approximation = "reduce",
    fisher_draws: int | None = None,
    generator: torch.Generator | None = None,
    noise: Noise = "scalar",
    num_data: int | None = None,
    reduce: Reduce | None = None,
    progress: bool = True,
) -> LaplacePosterior:
    """Fit a Laplace posterior over a subset of the weights.

    Args:
        model: The trained model, or a `Problem` that says how to read its batches.
        batches: Training batches, any iterable, read once ("ekfac": twice).
            Classification needs no labels: the curvature does not depend on them.
        subset: The weights to make stochastic.
        structure: How the curvature is kept: "kron" (factors), "ekfac" (their basis,
            measured in a second pass), "diag", or "full" (one matrix over all layers, for a
            few thousand weights).
        precision: Prior precision τ, to be tuned afterwards.
        approximation: How positions that share weights are treated.
        fisher_draws: Draw this many labels for each output in place of the exact GGN,
            whose cost grows with the number of classes.
        generator: Source of those draws; a fixed seed if left out.
        noise: Of a regression, fitted to the residuals: "scalar", or "per-output", which
            reads the batches once more.
        num_data: Size of the whole data set if `batches` is a sample of it.
        reduce: Adds a tensor up over all processes, where each has a shard of the data:
            `accelerator.reduce`. Every process must have a batch, and gets the posterior.
        progress: Draw a progress bar; in a log, a line a minute.

    Returns:
        The posterior; for regression, the noise is that of the training residuals,
        whatever the likelihood came with.
    """
    given = as_problem(model)
    check_numbers(approximation, precision)
    _check_choices(structure, noise, batches, subset)
    refuse_bad_weights(given.model)
    chosen = find_blocks(given.model, subset)
    refuse_scattered(STRUCTURES[structure], chosen)
    with preserve_model(given.model):
        if noise == "per-output":
            # Before the pass begins: a loader with lasting workers has but one iterator.
            given = _with_relative_noise(given, batches, reduce)
        followed = track(batches, "fitting", show=progress)
        problem, first, everything = given.settle(followed)
        chosen = without_mixing(problem, first, chosen)
        subset = restricted(subset, chosen)
        likelihood = problem.likelihood
        columns = exact_ggn(likelihood)
        if fisher_draws is not None:
            columns = sampled_fisher(likelihood, fisher_draws, generator)
        refuse_too_large(problem, chosen, subset, structure, first, fisher_draws)
        like = torch.empty(0, dtype=given.working_type, device=problem.device)
        sums = _sums(structure, problem, chosen, approximation, columns, like)
        found = accumulate(sums, problem, everything, chosen, reduce).finish(num_data)
        if structure == "ekfac":
            again = track(batches, "measuring", show=progress)
            sums = MomentAccumulator(problem, chosen, found.operators, columns)
            found = accumulate(sums, problem, again, chosen, reduce).finish(num_data)
    mention_idle(found)
    likelihood = with_noise(likelihood, found)
    return LaplacePosterior(
        subset=subset,
        likelihood=likelihood,
        operators={
            name: each.to(like.dtype, like.device) for name, each in found.operators.items()
        },
        precision=precision,
        fingerprint=fingerprint(given.model),
        num_data=found.num_data,
        structure=structure,
        approximation=approximation,
        log_likelihood=log_likelihood(likelihood, found),
    )


def _check_choices(
    structure: str,
    noise: str,
    batches: Iterable[Batch],
    subset: Subset,
) -> None:
    if structure not in STRUCTURES:
        names = ", ".join(STRUCTURES)
        raise StructureError(f"structure must be one of {names}, got {structure!r}.")
    if noise not in get_args(Noise):
        raise ArgumentError(f"noise must be one of {get_args(Noise)}, got {noise!r}.")
    twice = {"structure 'ekfac'": structure == "ekfac", "noise": noise == "per-output"}
    for what, needed in twice.items():
        if needed and isinstance(batches, Iterator):
            raise ArgumentError(
                f"batches must be readable twice for {what}, got an iterator. Pass a list "
                "or a data loader."
            )
    if not isinstance(subset, Subset):
        raise ArgumentError(
            f"subset must be a smidgen.Subset, got {type(subset).__name__}. The order is "
            "laplace(model, batches, subset)."
        )


def _sums(
    structure: str,
    problem: SettledProblem,
    chosen: Sequence[LayerBlock],
    approximation: Approximation,
    columns: BackwardVectors,
    like: Tensor,
) -> Accumulator:
    """What a first pass sums for a structure."""
    if structure == "full":
        return DenseAccumulator(problem, chosen, columns)
    if structure == "diag":
        return MomentAccumulator(problem, chosen, weight_basis(chosen, like), columns)
    return KroneckerAccumulator(problem, chosen, approximation, columns)


def _with_relative_noise(
    given: Problem, batches: Iterable[Batch], reduce: Reduce | None
) -> Problem:
    """Fit the relative noise of the outputs to the residuals, in a pass of its own."""
    problem, _, _ = given.settle(batches)
    likelihood = problem.likelihood
    if not isinstance(likelihood, Gaussian):
        raise ArgumentError("noise='per-output' is for regression. Leave it out.")
    plain = replace(likelihood, relative=None)
    squares, _ = squared_residuals(replace(problem, likelihood=plain), batches)
    if reduce is not None:
        squares = reduce(squares.to(problem.device)).cpu()
    if not (squares > 0).all():
        raise DataError(
            "noise='per-output' needs targets that differ from every output, got squared "
            f"residuals {squares.tolist()}. Use noise='scalar'."
        )
    logs = squares.log()
    relative = tuple((logs - logs.mean()).exp().tolist())
    return replace(problem, likelihood=replace(plain, relative=relative))
