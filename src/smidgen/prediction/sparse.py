"""Predictions of a sparse Gaussian network: S draws of its weights, one mixture.

p(y | x) ≈ (1/S) Σ_s p(y | f(x; θ_s)). Every draw serves all batches. A network without
noise, and `samples=0`, give the point prediction of the means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.likelihood import Likelihood
from smidgen.outputs.predictive import Predictive
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.sampling import SAMPLES
from smidgen.prediction.asking import joined, refuse_loader
from smidgen.runtime.guard import preserve_model
from smidgen.runtime.progress import track
from smidgen.sparse import SparseNetwork
from smidgen.types import Batch

Found = TypeVar("Found")


def predict_sparse(
    network: SparseNetwork | Problem,
    batch: Batch,
    *,
    samples: int = SAMPLES,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
) -> Predictive:
    """Predict one batch with draws of the active weights, one forward pass each.

    Args:
        network: The network, or its `Problem`. It is left as it was. Its outputs mean what
            they did in training, unless the `Problem` says otherwise.
        batch: The inputs, as the model's loader yields them; targets are not used.
        samples: How many draws; 0 for the means alone.
        temperature: Divides every draw's logits.
        generator: Source of the draws; a fixed seed if left out.

    Returns:
        The mean of the draws' probabilities, or mean and variance of their outputs.
    """
    refuse_loader(batch, "predict_sparse_batches")
    mixed = _mixture(temperature)
    return _each(network, [batch], samples, generator, mixed)[0]


def predict_sparse_batches(
    network: SparseNetwork | Problem,
    batches: Iterable[Batch],
    *,
    samples: int = SAMPLES,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    progress: bool = True,
) -> Predictive:
    """Predict all batches of a loader with the same draws of the active weights.

    Args:
        network: The network, or its `Problem`. It is left as it was.
        batches: Any iterable of batches, read once.
        samples: As in `predict_sparse`.
        temperature: As in `predict_sparse`.
        generator: As in `predict_sparse`.
        progress: Draw a progress bar; in a log, a line a minute.

    Returns:
        One predictive for all examples, in the loader's order.
    """
    followed = track(batches, "predicting", show=progress)
    return joined(_each(network, followed, samples, generator, _mixture(temperature)))


def sparse_outputs(
    network: SparseNetwork | Problem,
    batches: Iterable[Batch],
    *,
    samples: int = SAMPLES,
    generator: torch.Generator | None = None,
    progress: bool = True,
) -> Tensor:
    """Compute the outputs of all batches under each draw, before they are averaged.

    Args:
        network: The network, or its `Problem`. It is left as it was.
        batches: Any iterable of batches, read once.
        samples: As in `predict_sparse`.
        generator: As in `predict_sparse`.
        progress: Draw a progress bar; in a log, a line a minute.

    Returns:
        The outputs, (samples, N, C), in fp64 on the CPU; (2, N, C), twice the same, of
        a network without noise.

    Raises:
        DataError: If there is no batch.
    """
    followed = track(batches, "predicting", show=progress)
    found = _each(network, followed, samples, generator, lambda _, outputs: outputs)
    if not found:
        raise DataError("the data loader yielded no batch. Check the dataset's length.")
    return torch.cat(found, 1)


def _mixture(temperature: float) -> Callable[[Likelihood, Tensor], Predictive]:
    return lambda likelihood, outputs: likelihood.mixture(outputs, temperature)


def _each(
    network: SparseNetwork | Problem,
    batches: Iterable[Batch],
    samples: int,
    generator: torch.Generator | None,
    made: Callable[[Likelihood, Tensor], Found],
) -> list[Found]:
    """What is made of the outputs of every batch, (S, R, C)."""
    problem = as_problem(network)
    held = problem.model
    if not isinstance(held, SparseNetwork):
        raise ArgumentError(
            f"network must be a SparseNetwork, got {type(held).__name__}. Make one with "
            "smidgen.make_sparse or smidgen.fit.ssvi."
        )
    if samples < 0 or samples == 1:
        raise ArgumentError(f"samples must be 2 or more, or 0, got {samples}.")
    source = generator or torch.Generator().manual_seed(0)
    count = samples if held.stochastic else 0
    # One seed for each draw: made anew for every batch, so a loader is read once.
    seeds = torch.randint(2**62, (count,), generator=source).tolist()
    found = []
    with preserve_model(held), torch.no_grad():
        # What a model says of itself, its config, is the inner one's.
        known = problem.likelihood or held.likelihood
        inner = replace(problem, model=held.model, likelihood=known)
        problem, _, everything = inner.settle(batches)
        for batch in everything:
            outputs = _outputs(problem, held, batch, seeds)
            for each in outputs:
                problem.likelihood.check_outputs(each)
            found.append(made(problem.likelihood, outputs))
    return found


def _outputs(
    problem: Problem, network: SparseNetwork, batch: Batch, seeds: list[int]
) -> Tensor:
    """Outputs under every draw, (S, R, C), in fp64 on the CPU."""
    found = []
    for seed in seeds:
        with network.drawn(torch.Generator().manual_seed(seed)):
            found.append(problem.outputs(batch))
    # A point is a mixture of two that are the same.
    found = found or [problem.outputs(batch)] * 2
    if not len(found[0]):
        raise DataError("a batch holds no example. Leave empty batches out.")
    return torch.stack([each.flatten(0, -2).double().cpu() for each in found])
