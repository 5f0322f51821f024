"""The linearised predictive: Gaussian outputs from the Jacobian, then a link."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from smidgen.outputs.link_choice import Link
from smidgen.outputs.links import standard_normals
from smidgen.outputs.predictive import Predictive
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Posterior
from smidgen.posterior.output_covariance import output_moments
from smidgen.types import Batch
from smidgen.weights.blocks import find_blocks


def linearised_predictives(
    posterior: Posterior,
    problem: Problem,
    batches: Iterable[Batch],
    link: Link,
    seed: int,
) -> list[Predictive]:
    """Predict every batch through the model linearised about its weights.

    Args:
        posterior: A posterior that is linearised.
        problem: The model it belongs to.
        batches: Any iterable of batches, read once.
        link: How Gaussian outputs become probabilities.
        seed: Seed of the link's draws.

    Returns:
        A predictive for each batch.
    """
    likelihood = posterior.likelihood
    posterior.require(problem.model)
    settled = replace(problem.with_likelihood(likelihood), targets=_no_targets)
    name = likelihood.resolved_link(link.name, link.top)
    count = max(1, (link.top or likelihood.outputs) - 1)
    generator = torch.Generator().manual_seed(seed)
    normals = standard_normals(link.draws, count, generator=generator)
    blocks = find_blocks(problem.model, posterior.subset)
    terms = posterior.covariance_terms(blocks)
    directions = likelihood.followed(name, link.top)
    moments = output_moments(settled, batches, blocks, terms, directions)
    return [
        likelihood.predictive(
            each.outputs,
            each.total[0] * likelihood.scale,
            link=name,
            temperature=posterior.temperature,
            normals=normals,
            top=link.top,
        )
        for each in moments
    ]


def _no_targets(_: Batch) -> None:
    return None
