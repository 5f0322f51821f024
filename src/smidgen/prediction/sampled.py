"""Prediction by draws: the network itself, run under several draws of its weights.

p(y | x) ≈ (1/S) Σ_s p(y | f(x; w + ε_s)), ε_s from the posterior. Nothing is linearised,
so it costs S forward passes (of the layers above the lowest stochastic one) and no backward
pass. It is how SWAG and SSVI predict. A Laplace posterior is that of the linearised model,
and its draws may leave the region where the two agree (Immer, Korzepa and Bauer, 2021).
"""

from __future__ import annotations

from collections.abc import Iterable

from smidgen.outputs.predictive import Predictive
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Posterior
from smidgen.posterior.sampling import sampled_outputs
from smidgen.types import Batch


def sampled_predictives(
    posterior: Posterior,
    problem: Problem,
    batches: Iterable[Batch],
    samples: int,
    seed: int,
) -> list[Predictive]:
    """Predict every batch with the same draws of the weights, one forward pass each.

    Args:
        posterior: Any posterior.
        problem: The model it belongs to.
        batches: Any iterable of batches, read once.
        samples: How many draws, 2 or more; 0 for the point estimate.
        seed: Seed of the draws.

    Returns:
        A predictive for each batch: the mean of the draws' probabilities, or mean and
        variance of their outputs.
    """
    likelihood, predictives = posterior.likelihood, []
    runs = sampled_outputs(problem, posterior, batches, samples=samples, seed=seed)
    for _, outputs in runs:
        likelihood.check_outputs(outputs.flatten(0, 1))
        predictives.append(likelihood.mixture(outputs, posterior.temperature))
    return predictives
