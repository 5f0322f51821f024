"""Weight samples: the network itself, run under several draws of its stochastic weights.

p(y | x) ≈ (1/S) Σ_s p(y | f(x; w + ε_s)), ε_s from the posterior. Nothing is linearised,
so it costs S forward passes (of the layers above the lowest stochastic one) and no backward
pass. It is how SWAG predicts. A Laplace posterior is that of the linearised model, and its
samples may leave the region where the two agree (Immer, Korzepa and Bauer, 2021): for it
`smidgen.predict` is the default.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from smidgen.outputs.predictive import Predictive
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.laplace import Posterior
from smidgen.posterior.sampling import SAMPLES, sampled_outputs
from smidgen.prediction.asking import joined, refuse_loader, require_posterior
from smidgen.runtime.progress import track
from smidgen.types import Batch


def predict_samples(
    posterior: Posterior,
    model: nn.Module | Problem,
    batch: Batch,
    *,
    samples: int = SAMPLES,
    generator: torch.Generator | None = None,
    reuse: bool = True,
) -> Predictive:
    """Predict one batch with samples of the weights, one forward pass each.

    Args:
        posterior: A posterior of this model.
        model: The model, or its `Problem`. It is left as it was.
        batch: The inputs, as the model's loader yields them; targets are not used.
        samples: How many samples, 2 or more.
        generator: Source of the samples; a fixed seed if left out.
        reuse: Run what lies below the stochastic weights once for all samples. It is
            compared with a plain pass first, and given up if the two differ.

    Returns:
        The mean of the samples' probabilities, or mean and variance of their outputs.
    """
    refuse_loader(batch, "predict_samples_batches")
    return _predictives(posterior, model, [batch], samples, generator, reuse)[0]


def predict_samples_batches(
    posterior: Posterior,
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    *,
    samples: int = SAMPLES,
    generator: torch.Generator | None = None,
    reuse: bool = True,
    progress: bool = True,
) -> Predictive:
    """Predict all batches of a loader with the same samples of the weights.

    Args:
        posterior: A posterior of this model.
        model: The model, or its `Problem`. It is left as it was.
        batches: Any iterable of batches, read once.
        samples: As in `predict_samples`.
        generator: As in `predict_samples`.
        reuse: As in `predict_samples`.
        progress: Draw a progress bar; in a log, a line a minute.

    Returns:
        One predictive for all examples, in the loader's order.
    """
    followed = track(batches, "predicting", show=progress)
    return joined(_predictives(posterior, model, followed, samples, generator, reuse))


def _predictives(
    posterior: Posterior,
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    samples: int,
    generator: torch.Generator | None,
    reuse: bool,
) -> list[Predictive]:
    require_posterior(posterior)
    likelihood, found = posterior.likelihood, []
    runs = sampled_outputs(
        as_problem(model),
        posterior,
        batches,
        samples=samples,
        generator=generator,
        reuse=reuse,
    )
    for _, outputs in runs:
        likelihood.check_outputs(outputs.flatten(0, 1))
        found.append(likelihood.mixture(outputs, posterior.temperature))
    return found
