"""Laplace: a Gaussian at the trained weights whose precision is the curvature plus τ.

With the exact generalised Gauss–Newton matrix, one block per affine map, restricted to the
subset before anything is multiplied: Kronecker-factored that is Sparse-KFAC (DESIGN 4.2,
4.3).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import nn

from smidgen.affine import MapBlock, blocks
from smidgen.curvature.factors import APPROXIMATIONS, Approximation, FactorSums
from smidgen.curvature.moments import MomentSums, weight_basis
from smidgen.curvature.probe import mixing_maps
from smidgen.curvature.sums import Curvatures, Sums, accumulate
from smidgen.errors import ArgumentError, DataError, SmidgenWarning, StructureError
from smidgen.fingerprint import fingerprint
from smidgen.guard import untouched
from smidgen.likelihood import Gaussian, Likelihood
from smidgen.operators import STRUCTURES
from smidgen.posterior import Posterior
from smidgen.problem import Problem, as_problem
from smidgen.progress import track
from smidgen.subset import Subset
from smidgen.types import Batch


def laplace(
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    subset: Subset,
    *,
    structure: str = "kron",
    precision: float = 1.0,
    approximation: Approximation = "reduce",
    num_data: int | None = None,
    progress: bool = True,
) -> Posterior:
    """Fit a Laplace posterior over a subset of the weights.

    Args:
        model: The trained model, or a `Problem` that says how to read its batches.
        batches: Training batches, any iterable, read once ("ekfac": twice).
            Classification needs no labels: the curvature does not depend on them.
        subset: The weights to make stochastic.
        structure: How the curvature is kept: "kron" (factors), "ekfac" (their basis,
            measured in a second pass) or "diag".
        precision: Prior precision τ, to be tuned afterwards.
        approximation: How positions that share weights are treated.
        num_data: Size of the whole data set if `batches` is a sample of it.
        progress: Draw a progress bar on a terminal.

    Returns:
        The posterior; for regression, the noise is that of the training residuals,
        whatever the likelihood came with.

    Raises:
        ArgumentError: If an argument is outside what it may be.
        StructureError: If the structure is unknown or cannot hold the subset.
    """
    if structure not in STRUCTURES:
        names = ", ".join(STRUCTURES)
        raise StructureError(f"structure must be one of {names}, got {structure!r}.")
    if approximation not in APPROXIMATIONS:
        raise ArgumentError(
            f"approximation must be one of {APPROXIMATIONS}, got {approximation!r}."
        )
    if structure == "ekfac" and isinstance(batches, Iterator):
        raise ArgumentError(
            "batches must be readable twice for structure 'ekfac', got an iterator. Pass a "
            "list or a data loader."
        )
    if not isinstance(subset, Subset):
        raise ArgumentError(
            f"subset must be a smidgen.Subset, got {type(subset).__name__}. The order is "
            "laplace(model, batches, subset)."
        )
    given = as_problem(model)
    _refuse_bad_weights(given.model)
    chosen = blocks(given.model, subset)
    with untouched(given.model):
        followed = track(batches, "fitting", show=progress)
        problem, first, everything = given.settled(followed)
        chosen, subset = _without_mixing(problem, first, chosen, subset)
        like = torch.empty(0, dtype=_working_type(given.model), device=problem.device)
        if structure == "diag":
            sums: Sums = MomentSums(problem, chosen, weight_basis(chosen, like))
        else:
            sums = FactorSums(problem, chosen, approximation)
        found = accumulate(sums, problem, everything, chosen).finish(num_data)
        if structure == "ekfac":
            again = track(batches, "measuring", show=progress)
            sums = MomentSums(problem, chosen, found.operators)
            found = accumulate(sums, problem, again, chosen).finish(num_data)
    _mention_idle(found)
    likelihood = problem.likelihood
    assert likelihood is not None
    return Posterior(
        subset=subset,
        likelihood=_with_noise(likelihood, found),
        operators={
            name: each.to(like.dtype, like.device) for name, each in found.operators.items()
        },
        precision=precision,
        fingerprint=fingerprint(given.model),
        num_data=found.num_data,
        structure=structure,
        approximation=approximation,
    )


def _without_mixing(
    problem: Problem, first: Batch, chosen: tuple[MapBlock, ...], subset: Subset
) -> tuple[tuple[MapBlock, ...], Subset]:
    """Leave maps out whose rows cannot be told apart by example, and say so."""
    reasons = mixing_maps(problem, first, chosen)
    if not reasons:
        return chosen, subset
    kept = tuple(block for block in chosen if block.map.name not in reasons)
    first_reason = next(iter(reasons.values()))
    if not kept:
        raise StructureError(f"no chosen map can be treated: {first_reason}.")
    warnings.warn(
        f"{len(reasons)} chosen maps stay deterministic: {', '.join(list(reasons)[:3])}. "
        f"{first_reason}",
        SmidgenWarning,
        stacklevel=4,
    )
    names = {name for block in kept for name in block.map.shapes}
    parts = {name: part for name, part in subset.parts.items() if name in names}
    return kept, Subset(subset.universe, parts)


def _with_noise(likelihood: Likelihood, found: Curvatures) -> Likelihood:
    if not isinstance(likelihood, Gaussian):
        return likelihood
    if not found.squared_residual:
        raise DataError(
            "regression needs targets that differ from the outputs to fit its noise. "
            "Pass labelled data."
        )
    return replace(likelihood, noise=found.squared_residual)


def _working_type(model: nn.Module) -> torch.dtype:
    """The type predictions are computed in: the model's, but at least fp32."""
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return torch.float64 if torch.float64 in kinds else torch.float32


def _refuse_bad_weights(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter.detach()).all():
            raise DataError(
                f"the model's weights must be finite, got NaN or infinity in {name!r}. "
                "Train or load it again."
            )


def _mention_idle(found: Curvatures) -> None:
    if found.idle:
        warnings.warn(
            f"{len(found.idle)} chosen maps never ran, so their weights keep the "
            f"prior: {', '.join(found.idle[:3])}.",
            SmidgenWarning,
            stacklevel=3,
        )
