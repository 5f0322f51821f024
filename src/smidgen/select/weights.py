"""Single weights of affine layers by a score, over the whole model or in each parameter.

The score is the weight's magnitude, a random number, or given: marginal variances,
squared gradients, BayesTune's scales, SSVI's signal-to-noise. Ties go to the lower index.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from smidgen.select.ranking import By, ranking
from smidgen.select.top import fraction_share
from smidgen.weights.affine import ceil_fraction, require_coverage
from smidgen.weights.subset import Entries, Subset
from smidgen.weights.top_k import top_k


def weights(
    model: nn.Module,
    *,
    fraction: float,
    by: By = "magnitude",
    per_layer: bool = False,
    generator: torch.Generator | None = None,
) -> Subset:
    """Choose the weights with the largest scores.

    Args:
        model: The trained model; it is only read.
        fraction: Share of the weights to choose, in (0, 1]: of all affine layers, or of
            those that scores are given for.
        by: "magnitude", "random", or scores by parameter name, as
            `smidgen.select.scores` makes them.
        per_layer: Choose that share in each parameter rather than over all.
        generator: Source of a random choice; required for it.

    Returns:
        Single entries; at least one, or one of each parameter.
    """
    share = fraction_share(fraction)
    universe = require_coverage(model).universe
    scores = dict(ranking(model, by, generator))
    together = [{name: each} for name, each in scores.items()] if per_layer else [scores]
    chosen: dict[str, Tensor] = {}
    for group in together:
        count = sum(each.numel() for each in group.values())
        chosen |= top_k(group, ceil_fraction(count, share))
    return Subset(universe, {name: Entries(each) for name, each in chosen.items()})
