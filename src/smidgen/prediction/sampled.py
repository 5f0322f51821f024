"""Weight samples: the network itself, run under several draws of its stochastic weights.

p(y | x) ≈ (1/S) Σ_s p(y | f(x; w + ε_s)), ε_s from the posterior. Nothing is linearised,
so it costs S forward passes and no backward pass. A Laplace posterior is that of the
linearised model, and its samples may leave the region where the two agree (Immer,
Korzepa and Bauer, 2021): `smidgen.predict` is the default.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from smidgen.blocks import MapBlock, blocks
from smidgen.errors import ArgumentError, DataError
from smidgen.guard import untouched
from smidgen.posterior import JOINT, Posterior
from smidgen.prediction.asking import joined, refuse_loader, require_posterior
from smidgen.predictive import Predictive
from smidgen.problem import Problem, as_problem
from smidgen.progress import track
from smidgen.types import Batch

SAMPLES = 32
"""Samples of the weights when not told otherwise."""


def predict_samples(
    posterior: Posterior,
    model: nn.Module | Problem,
    batch: Batch,
    *,
    samples: int = SAMPLES,
    generator: torch.Generator | None = None,
) -> Predictive:
    """Predict one batch with samples of the weights, one forward pass each.

    Args:
        posterior: A posterior of this model.
        model: The model, or its `Problem`. It is left as it was.
        batch: The inputs, as the model's loader yields them; targets are not used.
        samples: How many samples, 2 or more.
        generator: Source of the samples; a fixed seed if left out.

    Returns:
        The mean of the samples' probabilities, or mean and variance of their outputs.
    """
    refuse_loader(batch, "predict_samples_batches")
    return _predictives(posterior, model, [batch], samples, generator)[0]


def predict_samples_batches(
    posterior: Posterior,
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    *,
    samples: int = SAMPLES,
    generator: torch.Generator | None = None,
    progress: bool = True,
) -> Predictive:
    """Predict all batches of a loader with the same samples of the weights.

    Args:
        posterior: A posterior of this model.
        model: The model, or its `Problem`. It is left as it was.
        batches: Any iterable of batches, read once.
        samples: As in `predict_samples`.
        generator: As in `predict_samples`.
        progress: Draw a progress bar on a terminal.

    Returns:
        One predictive for all examples, in the loader's order.
    """
    followed = track(batches, "predicting", show=progress)
    return joined(_predictives(posterior, model, followed, samples, generator))


def _predictives(
    posterior: Posterior,
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    samples: int,
    generator: torch.Generator | None,
) -> list[Predictive]:
    require_posterior(posterior)
    if samples < 2:
        raise ArgumentError(f"samples must be 2 or more, got {samples}.")
    problem = as_problem(model)
    posterior.require(problem.model)
    chosen = blocks(problem.model, posterior.subset)
    # One seed for each sample: drawn anew for every batch, only one is ever in memory,
    # and a loader is read once.
    source = generator or torch.Generator().manual_seed(0)
    seeds = torch.randint(2**62, (samples,), generator=source).tolist()
    likelihood = posterior.likelihood
    found = []
    with untouched(problem.model), torch.no_grad():
        for batch in batches:
            outputs = [
                _outputs(problem, batch, _sample(posterior, problem.model, chosen, seed))
                for seed in seeds
            ]
            for each in outputs:
                likelihood.check_outputs(each)
            found.append(likelihood.mixture(torch.stack(outputs), posterior.temperature))
    return found


def _outputs(problem: Problem, batch: Batch, weights: dict[str, Tensor]) -> Tensor:
    """One row for each example or token, in fp64 on the CPU: (R, C)."""
    found = problem.outputs(batch, weights)
    if not len(found):
        raise DataError("a batch holds no example. Leave empty batches out.")
    return found.flatten(0, -2).double().cpu()


def _sample(
    posterior: Posterior, model: nn.Module, chosen: Sequence[MapBlock], seed: int
) -> dict[str, Tensor]:
    """The parameters that a draw of the weights changes, by name."""
    drawn = posterior.drawn(torch.Generator().manual_seed(seed))
    if JOINT in drawn:
        pieces = drawn[JOINT].split([block.size for block in chosen])
    else:
        pieces = tuple(drawn[block.map.name] for block in chosen)
    found: dict[str, Tensor] = {}
    for block, piece in zip(chosen, pieces, strict=True):
        for name, deviation in block.spread(piece).items():
            weight = found.get(name, model.get_parameter(name).detach())
            # Added in the finer of the two types: a small deviation of a bf16 weight
            # should be rounded once.
            found[name] = (weight + deviation.to(weight.device)).to(weight.dtype)
    return found
