"""The linearised predictive: Gaussian outputs from the Jacobian, then a link."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import nn

from smidgen.errors import ArgumentError
from smidgen.outputs.links import DRAWS, standard_normals
from smidgen.outputs.predictive import Predictive
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.output_covariance import covariance_terms, output_moments
from smidgen.prediction.asking import joined, refuse_loader, require_posterior
from smidgen.runtime.progress import track
from smidgen.types import Batch
from smidgen.weights.blocks import find_blocks


def predict(
    posterior: LaplacePosterior,
    model: nn.Module | Problem,
    batch: Batch,
    *,
    link: str = "auto",
    top: int | None = None,
    draws: int = DRAWS,
    generator: torch.Generator | None = None,
) -> Predictive:
    """Predict one batch: one forward pass, and one backward pass for two classes.

    Args:
        posterior: A posterior of this model.
        model: The model, or its `Problem`. It is left as it was.
        batch: The inputs, as the model's loader yields them; targets are not used.
        link: "auto", "probit" (two classes, exact in f₁ − f₀), "diagonal-probit" (the
            paper's equation 12), "sampling" or "laplace-bridge".
        top: Follow only this many classes of each example, its likeliest: top − 1
            backward passes. The others keep their distance to the likeliest.
        draws: Draws of the logits if the link samples.
        generator: Source of those draws; a fixed seed if left out.

    Returns:
        Probabilities, or mean and variance, with the uncertainty of each example.
    """
    refuse_loader(batch, "predict_batches")
    return _predictives(posterior, model, [batch], link, top, draws, generator)[0]


def predict_batches(
    posterior: LaplacePosterior,
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    *,
    link: str = "auto",
    top: int | None = None,
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
        top: As in `predict`.
        draws: As in `predict`.
        generator: As in `predict`.
        progress: Draw a progress bar; in a log, a line a minute.

    Returns:
        One predictive for all examples.
    """
    followed = track(batches, "predicting", show=progress)
    return joined(_predictives(posterior, model, followed, link, top, draws, generator))


def _predictives(
    posterior: LaplacePosterior,
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    link: str,
    top: int | None,
    draws: int,
    generator: torch.Generator | None,
) -> list[Predictive]:
    require_posterior(posterior)
    if not isinstance(posterior, LaplacePosterior):
        raise ArgumentError(
            "predict linearises about the trained weights, and a SwagPosterior is not "
            "centred there. Use smidgen.predict_samples (predict_samples_batches)."
        )
    likelihood = posterior.likelihood
    posterior.require(as_problem(model).model)
    problem = replace(as_problem(model).with_likelihood(likelihood), targets=_no_targets)
    link = likelihood.resolved_link(link, top)
    count = max(1, (top or likelihood.outputs) - 1)
    normals = standard_normals(draws, count, generator=generator)
    chosen = find_blocks(problem.model, posterior.subset)
    shares = covariance_terms(posterior, chosen)
    directions = likelihood.followed(link, top)
    moments = output_moments(problem, batches, chosen, shares, directions)
    return [
        likelihood.predictive(
            each.outputs,
            each.total[0] * likelihood.scale,
            link=link,
            temperature=posterior.temperature,
            normals=normals,
            top=top,
        )
        for each in moments
    ]


def _no_targets(_: Batch) -> None:
    return None
