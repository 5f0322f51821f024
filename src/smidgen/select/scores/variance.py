"""Marginal posterior variances: choose the weights the data say least about.

The subnetwork of Daxberger et al. (2021, arXiv:2010.14689) in two steps: fit a cheap
posterior over all weights, `diag` as a rule, and give its variances to a selector. With a
scalar prior precision τ that ranking does not depend on τ if the structure is `diag`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from smidgen.curvature.operators import JOINT
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.select.scores.passes import scatter_scores
from smidgen.weights.blocks import find_blocks


def variance(posterior: LaplacePosterior, model: nn.Module | Problem) -> dict[str, Tensor]:
    """Score every weight and bias by its variance under a posterior.

    With curvature h for unit noise σ², the variances are σ²/(h + τσ²) in the posterior's
    basis; their diagonal in the weights is the score.

    Args:
        posterior: A posterior of any structure.
        model: The model it was fitted to, or its `Problem`.

    Returns:
        Scores by parameter name; zero for weights the posterior leaves fixed. A weight
        that no output depends on has the prior's variance, the largest there is.
    """
    network = as_problem(model).model
    posterior.require(network)
    blocks = find_blocks(network, posterior.subset)
    noise = posterior.likelihood.scale
    variances: dict[str, Tensor] = {}
    for name, operator in posterior.operators.items():
        wide = operator.to(torch.float64)
        precision = posterior.precision_of(name) * noise
        variances[name] = wide.variances(precision, noise)
    if JOINT in variances:
        parts = variances[JOINT].split([block.size for block in blocks])
        variances = {b.layer.name: part for b, part in zip(blocks, parts, strict=True)}
    return scatter_scores(network, blocks, variances)
