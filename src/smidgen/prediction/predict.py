"""`predict` and `predict_batches`: every posterior, in the way that suits it."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.utils.data import DataLoader

from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.link_choice import Link
from smidgen.outputs.predictive import Predictive, concatenate
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.base import Posterior
from smidgen.prediction.linearised import linearised_predictives
from smidgen.prediction.sampled import sampled_predictives
from smidgen.runtime.progress import track
from smidgen.types import Batch


def predict(
    posterior: Posterior,
    model: nn.Module | Problem,
    batch: Batch,
    *,
    link: str | Link = "auto",
    samples: int | None = None,
    seed: int = 0,
) -> Predictive:
    """Predict one batch: linearised where the posterior is, else by draws of the weights.

    The linearised model takes one forward pass, and for two classes one backward pass;
    draws take a forward pass each.

    Args:
        posterior: A posterior of this model.
        model: The model, or its `Problem`. It is left as it was.
        batch: The inputs, as the model's loader yields them; targets are not used.
        link: How the linearised model's outputs become probabilities: "auto", "probit",
            "diagonal-probit", "sampling", "laplace-bridge", or a `Link` with settings.
        samples: Predict by so many draws of the weights; 0 for the point estimate. Left
            out, a linearised posterior draws none, any other as many as it was
            calibrated with.
        seed: Seed of the draws, of weights or of the link's logits.

    Returns:
        Probabilities, or mean and variance, with the uncertainty of each example.

    Raises:
        ArgumentError: If batch is a loader, or posterior is not one of this model.
    """
    if isinstance(batch, DataLoader):
        raise ArgumentError(
            "batch must be one batch, got a DataLoader. Use smidgen.predict_batches."
        )
    return _predictives(posterior, model, [batch], link, samples, seed)[0]


def predict_batches(
    posterior: Posterior,
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    *,
    link: str | Link = "auto",
    samples: int | None = None,
    seed: int = 0,
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
        progress: Draw a progress bar; in a log, a line a minute.

    Returns:
        One predictive for all examples.

    Raises:
        DataError: If there is no batch.
    """
    tracked = track(batches, "predicting", show=progress)
    predictives = _predictives(posterior, model, tracked, link, samples, seed)
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
) -> list[Predictive]:
    if not isinstance(posterior, Posterior):
        raise ArgumentError(
            f"posterior must be a smidgen posterior, got {type(posterior).__name__}. The "
            "order is (posterior, model, batch)."
        )
    problem = as_problem(model)
    if posterior.linearised and samples is None:
        chosen = link if isinstance(link, Link) else Link(link)
        return linearised_predictives(posterior, problem, batches, chosen, seed)
    count = posterior.samples if samples is None else samples
    return sampled_predictives(posterior, problem, batches, count, seed)
