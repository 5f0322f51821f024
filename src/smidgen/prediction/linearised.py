"""The linearised predictive: Gaussian outputs from the Jacobian, then a link."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from smidgen.affine import blocks
from smidgen.curvature.functional import Moments, output_moments
from smidgen.errors import DataError
from smidgen.likelihood import Categorical, Gaussian
from smidgen.links import (
    DRAWS,
    class_log_probs,
    damping,
    directions,
    resolve,
    standard_normals,
)
from smidgen.posterior import Posterior
from smidgen.predictive import (
    BernoulliPredictive,
    CategoricalPredictive,
    GaussianPredictive,
    Predictive,
    concatenate,
)
from smidgen.problem import Problem, as_problem
from smidgen.progress import track
from smidgen.types import Batch


def predict(
    posterior: Posterior,
    model: nn.Module | Problem,
    batch: Batch,
    *,
    link: str = "auto",
    draws: int = DRAWS,
    generator: torch.Generator | None = None,
) -> Predictive:
    """Predict one batch: one forward pass, and one backward pass for two classes.

    Args:
        posterior: A posterior of this model.
        model: The model, or its `Problem`. It is left as it was.
        batch: The inputs, as the model's loader yields them; targets are not used.
        link: "auto", "probit" (two classes, exact in f₁ − f₀), "diagonal-probit" (the
            paper's equation 12) or "sampling".
        draws: Draws of the logits if the link samples.
        generator: Source of those draws; a fixed seed if left out.

    Returns:
        Probabilities, or mean and variance, with the uncertainty of each example.
    """
    return _predictives(posterior, model, [batch], link, draws, generator)[0]


def predict_batches(
    posterior: Posterior,
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    *,
    link: str = "auto",
    draws: int = DRAWS,
    generator: torch.Generator | None = None,
    progress: bool = True,
) -> Predictive:
    """Predict all batches of a loader, in its order.

    Args:
        posterior: A posterior of this model.
        model: The model, or its `Problem`. It is left as it was.
        batches: Any iterable of batches, read once.
        link: As in `predict`.
        draws: As in `predict`.
        generator: As in `predict`.
        progress: Draw a progress bar on a terminal.

    Returns:
        One predictive for all examples.

    Raises:
        DataError: If there is no batch.
    """
    followed = track(batches, "predicting", show=progress)
    found = _predictives(posterior, model, followed, link, draws, generator)
    if not found:
        raise DataError("the data loader yielded no batch. Check the dataset's length.")
    return concatenate(found)


def _predictives(
    posterior: Posterior,
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    link: str,
    draws: int,
    generator: torch.Generator | None,
) -> list[Predictive]:
    likelihood = posterior.likelihood
    posterior.require(as_problem(model).model)
    problem = replace(as_problem(model), likelihood=likelihood, targets=_no_targets)
    outputs = likelihood.outputs
    link = resolve(link, outputs if isinstance(likelihood, Categorical) else 2)
    wanted = torch.eye(outputs, dtype=torch.float64)
    if isinstance(likelihood, Categorical):
        wanted = directions(link, outputs)
    normals = standard_normals(draws, max(1, outputs - 1), generator=generator)
    moments = output_moments(
        problem,
        batches,
        blocks(problem.model, posterior.subset),
        posterior.operators,
        directions=wanted,
        precisions=torch.tensor([posterior.precision * likelihood.scale]),
    )
    return [_predictive(posterior, each, link, normals) for each in moments]


def _predictive(
    posterior: Posterior, moments: Moments, link: str, normals: Tensor
) -> Predictive:
    likelihood, temperature = posterior.likelihood, posterior.temperature
    outputs = moments.outputs
    covariance = moments.covariance[0] * likelihood.scale
    if isinstance(likelihood, Categorical):
        log_probs = class_log_probs(
            link, outputs, covariance, temperature=temperature, normals=normals
        )
        if link != "diagonal-probit":
            covariance = _centred(covariance)
        return CategoricalPredictive(log_probs, outputs, covariance, temperature)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    if isinstance(likelihood, Gaussian):
        return GaussianPredictive(outputs, variance, likelihood.noise)
    probs = (outputs / temperature * damping(variance)).sigmoid()
    return BernoulliPredictive(probs, outputs, variance, temperature)


def _centred(covariance: Tensor) -> Tensor:
    """From differences to class 0, (B, C−1, C−1), to centred logits, (B, C, C)."""
    classes = covariance.shape[-1] + 1
    centring = torch.eye(classes, dtype=covariance.dtype) - 1 / classes
    lift = centring[:, 1:]
    return lift @ covariance @ lift.T


def _no_targets(_: Batch) -> None:
    return None
