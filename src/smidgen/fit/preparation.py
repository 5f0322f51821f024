"""What every fit does before its pass over the data and after it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from math import log, pi

import torch
from torch import nn

from smidgen.blocks import MapBlock
from smidgen.curvature.probe import mixing_maps
from smidgen.curvature.sums import Curvatures
from smidgen.errors import DataError, SmidgenWarning, StructureError
from smidgen.likelihood import Gaussian, Likelihood
from smidgen.problem import Problem
from smidgen.subset import Subset
from smidgen.types import Batch


def log_likelihood(likelihood: Likelihood, found: Curvatures) -> float | None:
    """That of the training data; for regression under the noise just fitted."""
    if not isinstance(likelihood, Gaussian):
        return found.log_likelihood
    # Relative noises multiply to one, so they leave no trace in the log determinant.
    terms = found.squared_residual / likelihood.noise + log(2 * pi * likelihood.noise)
    return -0.5 * found.num_data * likelihood.outputs * terms


def without_mixing(
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


def with_noise(likelihood: Likelihood, found: Curvatures) -> Likelihood:
    """Give a regression the noise of its training residuals.

    Args:
        likelihood: The likelihood of the pass.
        found: What the pass found.

    Returns:
        The likelihood, with that noise if it has one.

    Raises:
        DataError: If there is no residual to fit the noise to.
    """
    if not isinstance(likelihood, Gaussian):
        return likelihood
    if not found.squared_residual:
        raise DataError(
            "regression needs targets that differ from the outputs to fit its noise. "
            "Pass labelled data."
        )
    return replace(likelihood, noise=found.squared_residual)


def refuse_bad_weights(model: nn.Module) -> None:
    """Refuse a model whose weights are not finite numbers.

    Args:
        model: The model; it is only read.

    Raises:
        DataError: If a weight is NaN or infinite.
    """
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter.detach()).all():
            raise DataError(
                f"the model's weights must be finite, got NaN or infinity in {name!r}. "
                "Train or load it again."
            )


def mention_idle(found: Curvatures) -> None:
    """Warn about chosen maps that never ran."""
    if found.idle:
        warnings.warn(
            f"{len(found.idle)} chosen maps never ran, so their weights keep the "
            f"prior: {', '.join(found.idle[:3])}.",
            SmidgenWarning,
            stacklevel=3,
        )
