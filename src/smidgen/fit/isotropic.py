"""Isotropic: a Gaussian at the trained weights with the prior's variance, and no curvature.

At a precision that suits held-out data the curvature is often small against it. Then the
variance of an output is ‖J‖²/τ, which needs neither training data nor factors (DESIGN 4.10).
It is the baseline that every curvature must beat.
"""

from __future__ import annotations

from torch import nn

from smidgen.errors import ArgumentError
from smidgen.fit.laplace import check_fit
from smidgen.outputs.problem import Problem, as_problem, declared_likelihood
from smidgen.posterior.laplace import LaplacePosterior, make_isotropic
from smidgen.weights.affine.share import warn_of_little_covered
from smidgen.weights.blocks import find_blocks
from smidgen.weights.subset import Subset


def isotropic(
    model: nn.Module | Problem, subset: Subset, *, precision: float = 1.0
) -> LaplacePosterior:
    """Make a posterior without curvature over a subset of the weights; no batch is read.

    Args:
        model: The trained model, or its `Problem`. What its outputs mean must be known: from
            the problem's likelihood, or from a Hugging Face model's config.
        subset: The weights to make stochastic.
        precision: Prior precision τ, to be calibrated afterwards on held-out data, with the
            noise of a regression.

    Returns:
        The posterior: a few kilobytes, whatever the subset. Joined with `|` to one of other
        layers, each keeps its own precision.

    Raises:
        ArgumentError: If it is not known what the outputs mean.
    """
    if not isinstance(subset, Subset):
        raise ArgumentError(
            f"subset must be a smidgen.Subset, got {type(subset).__name__}. The order is "
            "(model, subset): no data are read."
        )
    problem = as_problem(model)
    blocks = find_blocks(problem.model, subset)
    warn_of_little_covered(problem.model, subset)
    check_fit(problem.model, "isotropic", precision, blocks)
    likelihood = problem.likelihood or declared_likelihood(problem.model)
    if likelihood is None:
        raise ArgumentError(
            "likelihood must be known, since no batch is read, got a model whose config does "
            "not tell it. Pass smidgen.Problem(model, smidgen.Categorical(classes)), or "
            "Bernoulli or Gaussian."
        )
    return make_isotropic(problem.with_likelihood(likelihood), subset, blocks, precision)
