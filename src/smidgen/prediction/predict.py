"""`predict` and `predict_batches`: through the linearised model, or by draws of the weights.

A linearised posterior has Gaussian outputs, from the Jacobian, which a link turns into
probabilities. Draws run the network itself:

    p(y | x) ≈ (1/S) Σ_s p(y | f(x; w + ε_s)), ε_s from the posterior

at S forward passes (of the layers above the lowest stochastic one) and no backward pass.
That is how SWAG and SSVI predict. A Laplace posterior is that of the linearised model; its
draws may leave the region where the two agree (Immer, Korzepa and Bauer, 2021).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from smidgen.curvature.factors.low_rank import TOLERANCE, check_tolerance
from smidgen.curvature.taps import tapped
from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.batches import Unread, as_batches, in_batch
from smidgen.outputs.links import Link, standard_normals
from smidgen.outputs.predictive import Predictive, concatenate
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.base import Posterior
from smidgen.posterior.output_covariance import (
    CovarianceTerm,
    Moments,
    cache_weights,
    map_moments,
)
from smidgen.posterior.sampling import sampled_outputs
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.keeping.structure import Structure, trust_structure
from smidgen.runtime.progress import track
from smidgen.types import Batch
from smidgen.weights.blocks import LayerBlock, find_blocks

_Prepared = tuple[Sequence[LayerBlock], Sequence[CovarianceTerm]]
# Weights 1/(h + τ) of all terms are kept between calls up to this many bytes.
_MOST_BYTES = 2**28
# How many standard normals are: a megabyte.
_MOST_NORMALS = 2**17


def predict(
    posterior: Posterior,
    model: nn.Module | Problem,
    batch: Batch,
    *,
    link: str | Link = "auto",
    samples: int | None = None,
    seed: int = 0,
    tolerance: float | None = TOLERANCE,
) -> Predictive:
    """Predict one batch: linearised where the posterior is, else by draws of the weights.

    The linearised model takes one forward pass, and for two classes one backward pass;
    draws take a forward pass each.

    Args:
        posterior: A posterior of this model.
        model: The model, or its `Problem`. It is left as it was.
        batch: The inputs, as the model's loader yields them; targets are not used.
        link: How the linearised model's outputs become probabilities: "auto", "quadrature",
            "probit", "diagonal-probit", "sampling", "laplace-bridge", or a `Link` with
            settings. "auto" is the one that the posterior was calibrated under.
        samples: Predict by this many draws of the weights; 0 for the point estimate. By
            default a linearised posterior draws none, any other as many as it was
            calibrated with.
        seed: Seed of the draws, of weights or of the link's logits.
        tolerance: By how much, relatively, a variance may be off where Kronecker factors of
            large layers are cut to what matters at the posterior's precision; None for all
            the eigenvectors that the posterior has: exact, unless it was compressed.

    Returns:
        Probabilities, or mean and variance, with the uncertainty of each example.

    Raises:
        ArgumentError: If batch is a loader, or the posterior belongs to another model.
        DataError: If an input, an output or a variance is not finite.
    """
    if isinstance(batch, DataLoader):
        raise ArgumentError(
            "batch must be one batch, got a DataLoader. Use smidgen.predict_batches."
        )
    try:
        return _predictives(posterior, model, [batch], link, samples, seed, tolerance)[0]
    except DataError as error:
        # There is but one: its number would say nothing.
        error.batch = None
        raise


def predict_batches(
    posterior: Posterior,
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    *,
    link: str | Link = "auto",
    samples: int | None = None,
    seed: int = 0,
    tolerance: float | None = TOLERANCE,
    progress: bool = True,
) -> Predictive:
    """Predict all batches of a loader, in its order, with the same draws.

    Args:
        posterior: A posterior of this model.
        model: The model, or its `Problem`. It is left as it was.
        batches: Any iterable of batches, read once.
        link: As in `predict`.
        samples: As in `predict`.
        seed: As in `predict`.
        tolerance: As in `predict`.
        progress: Show a progress bar.

    Returns:
        One predictive for all examples.

    Raises:
        DataError: If there is no batch.
    """
    batches = as_batches(batches)
    tracked = track(batches, "predicting", show=progress)
    predictives = _predictives(posterior, model, tracked, link, samples, seed, tolerance)
    if not predictives:
        raise DataError("the data loader yielded no batch. Check the dataset's length.")
    return concatenate(predictives)


def _predictives(
    posterior: Posterior,
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    link: str | Link,
    samples: int | None,
    seed: int,
    tolerance: float | None,
) -> list[Predictive]:
    if not isinstance(posterior, Posterior):
        raise ArgumentError(
            f"posterior must be a smidgen posterior, got {type(posterior).__name__}. The "
            "order is (posterior, model, batch)."
        )
    check_tolerance(tolerance)
    problem = as_problem(model)
    settings = link if isinstance(link, Link) else Link(link)
    if posterior.linearised and samples is None:
        if settings == Link():
            settings = posterior.link
        return _linearised_predictives(
            posterior, problem, batches, settings, seed, tolerance
        )
    settings.refuse_for_draws()
    count = posterior.samples if samples is None else samples
    return _sampled_predictives(posterior, problem, batches, count, seed)


def _linearised_predictives(
    posterior: Posterior,
    problem: Problem,
    batches: Iterable[Batch],
    link: Link,
    seed: int,
    tolerance: float | None,
) -> list[Predictive]:
    likelihood = posterior.likelihood
    unlabelled = replace(
        problem.with_likelihood(likelihood), targets=Unread(problem.targets)
    )
    link = likelihood.settle_link(link, tell=True)
    name, top = link.name, link.followed
    normals = None
    if name == "sampling":
        count = max(1, (top or likelihood.outputs) - 1)
        normals = _draw_normals(link.draws, count, seed)

    def make(moments: Moments) -> Predictive:
        # Batch by batch: outputs of all classes need not outlive theirs.
        return likelihood.predictive(
            moments.outputs,
            moments.total[0] * likelihood.scale,
            link=name,
            temperature=posterior.temperature,
            normals=normals,
            top=top,
            keep=link.keep,
        )

    directions = likelihood.choose_directions(name, top)
    with unlabelled.on_lent_shadow() as lent:
        with trust_structure(lent.structure):
            posterior.require(problem.model)
        blocks, terms = _prepare(posterior, problem.model, tolerance, lent.structure)
        with tapped(lent, blocks) as taps:
            return map_moments(taps, batches, terms, directions, make)


def _prepare(
    posterior: Posterior,
    model: nn.Module,
    tolerance: float | None,
    structure: Structure | None,
) -> _Prepared:
    """Find what no batch changes: once for a posterior while its model's structure holds."""
    kept: dict[float | None, _Prepared]
    kept = {} if structure is None else structure.keep(posterior, dict)
    prepared = kept.get(tolerance)
    if prepared is None:
        blocks = find_blocks(model, posterior.subset)
        terms = posterior.covariance_terms(blocks, tolerance=tolerance)
        if sum(term.bytes for term in terms) <= _MOST_BYTES:
            terms = cache_weights(terms)
        prepared = blocks, terms
        # Those of one tolerance are enough.
        kept.clear()
        kept[tolerance] = prepared
    return prepared


def _draw_normals(draws: int, count: int, seed: int) -> Tensor:
    """Draw standard normals, or remember them if they are few."""
    if draws * count > _MOST_NORMALS:
        return standard_normals(draws, count, seed=seed)
    return _remember_normals(draws, count, seed)


@lru_cache(maxsize=16)
def _remember_normals(draws: int, count: int, seed: int) -> Tensor:
    # Whatever device and mode the first caller's context has.
    with torch.device("cpu"), torch.inference_mode(False):
        return standard_normals(draws, count, seed=seed)


def _sampled_predictives(
    posterior: Posterior,
    problem: Problem,
    batches: Iterable[Batch],
    samples: int,
    seed: int,
) -> list[Predictive]:
    likelihood, predictives = posterior.likelihood, []
    runs = sampled_outputs(problem, posterior, batches, samples=samples, seed=seed)
    # Around the loader too, which may draw from torch's own generator.
    with preserve_random_state(problem.model):
        for number, (_, outputs) in enumerate(runs, 1):
            with in_batch(number):
                likelihood.check_outputs(outputs.flatten(0, 1))
            predictives.append(likelihood.mixture(outputs, posterior.temperature))
    return predictives
