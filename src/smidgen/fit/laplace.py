"""Laplace: a Gaussian at the trained weights whose precision is the curvature plus τ.

With the exact generalised Gauss–Newton matrix, one block per affine layer, restricted to the
subset before anything is multiplied: Kronecker-factored that is Sparse-KFAC (DESIGN 4.2,
4.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import nn

from smidgen.curvature.accumulate import accumulate
from smidgen.curvature.ggn_roots import BackwardVectors, exact_ggn, sampled_fisher
from smidgen.curvature.kronecker import APPROXIMATIONS, Approximation
from smidgen.curvature.operators import STRUCTURES
from smidgen.curvature.passes import PASSES, PassInputs
from smidgen.errors import ArgumentError, StructureError
from smidgen.fit.checks import check_fit, drop_mixing_layers, warn_of_idle_layers
from smidgen.outputs.likelihood import Likelihood
from smidgen.outputs.problem import Problem, as_problem
from smidgen.outputs.residuals import fit_relative_noise
from smidgen.posterior.cost import Setting, refuse_too_large
from smidgen.posterior.cost_laplace import LAPLACE_COSTS
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.runtime.guard import fingerprint, preserve_model
from smidgen.runtime.progress import track
from smidgen.types import Batch, Reduce
from smidgen.weights.blocks import find_blocks, restrict_subset
from smidgen.weights.subset import Subset

Noise = Literal["scalar", "per-output"]


@dataclass(frozen=True)
class LaplaceSettings:
    """How the curvature is measured.

    Args:
        approximation: How positions that share weights are treated: "reduce" or "expand".
        fisher_draws: Draw this many labels for each output in place of the exact GGN,
            whose cost grows with the number of classes.
        noise: Of a regression, fitted to the residuals: "scalar", or "per-output", which
            reads the batches once more.
        num_data: Size of the whole data set if the batches are a sample of it.
        seed: Seed of the drawn labels.

    Raises:
        ArgumentError: If one is not among its choices.
    """

    approximation: Approximation = "reduce"
    fisher_draws: int | None = None
    noise: Noise = "scalar"
    num_data: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        choices = {"approximation": APPROXIMATIONS, "noise": get_args(Noise)}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ArgumentError(
                    f"{name} must be one of {allowed}, got {getattr(self, name)!r}."
                )

    def backward_vectors(self, likelihood: Likelihood) -> BackwardVectors:
        """What a pass sends back from the outputs."""
        if self.fisher_draws is None:
            return exact_ggn(likelihood)
        generator = torch.Generator().manual_seed(self.seed)
        return sampled_fisher(likelihood, self.fisher_draws, generator)


def laplace(
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    subset: Subset,
    *,
    structure: str = "kron",
    precision: float = 1.0,
    settings: LaplaceSettings | None = None,
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
        precision: Prior precision τ, to be calibrated afterwards.
        settings: How the curvature is measured.
        reduce: Adds a tensor up over all processes, where each has a shard of the data:
            `accelerator.reduce`. Every process must have a batch, and gets the posterior.
        progress: Draw a progress bar; in a log, a line a minute.

    Returns:
        The posterior; for regression, the noise is that of the training residuals,
        whatever the likelihood came with.
    """
    settings = settings or LaplaceSettings()
    _check_arguments(structure, settings, batches, subset)
    problem = as_problem(model)
    blocks = find_blocks(problem.model, subset)
    check_fit(problem.model, structure, precision, blocks)
    with preserve_model(problem.model):
        if settings.noise == "per-output":
            # Before the pass begins: a loader with lasting workers has but one iterator.
            problem = fit_relative_noise(problem, batches, reduce)
        shown = track(batches, "fitting", show=progress)
        problem, first, read_once = problem.settle(shown)
        blocks = drop_mixing_layers(problem, first, blocks)
        subset = restrict_subset(subset, blocks)
        vectors = settings.backward_vectors(problem.likelihood)
        setting = Setting.of(problem, settings.fisher_draws)
        refuse_too_large(LAPLACE_COSTS, problem, subset, structure, setting, first)
        inputs = PassInputs(problem, blocks, vectors, settings.approximation, {})
        data: Iterable[Batch] = read_once
        for make_sums in PASSES[structure]:
            sums = accumulate(make_sums(inputs), problem, data, blocks, reduce)
            curvatures = sums.finish(settings.num_data)
            inputs = inputs.after(curvatures.operators)
            data = track(batches, "measuring", show=progress)
    warn_of_idle_layers(curvatures)
    likelihood = problem.likelihood.fit_noise(curvatures.squared_residual)
    kind, device = problem.working_type, problem.device
    return LaplacePosterior(
        subset=subset,
        likelihood=likelihood,
        operators={n: made.to(kind, device) for n, made in curvatures.operators.items()},
        precision=precision,
        fingerprint=fingerprint(problem.model),
        num_data=curvatures.num_data,
        structure=structure,
        approximation=settings.approximation,
        log_likelihood=curvatures.log_likelihood_under(likelihood),
    )


def _check_arguments(
    structure: str, settings: LaplaceSettings, batches: Iterable[Batch], subset: Subset
) -> None:
    if structure not in STRUCTURES:
        names = ", ".join(STRUCTURES)
        raise StructureError(f"structure must be one of {names}, got {structure!r}.")
    read_twice = {
        f"structure {structure!r}": len(PASSES[structure]) > 1,
        "noise": settings.noise == "per-output",
    }
    for what, needed in read_twice.items():
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
