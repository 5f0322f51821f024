"""Single weights of affine layers by a score, over the whole model or in each parameter.

The score is the weight's magnitude, a random number, or given: marginal variances,
squared gradients, BayesTune's scales, SSVI's signal-to-noise. Ties go to the lower index.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from smidgen.select.ranking import By, check_fraction, describe_ranking, iterate_scores
from smidgen.types import Json
from smidgen.weights.affine import ceil_fraction, require_coverage
from smidgen.weights.origin import Origin
from smidgen.weights.subset import Entries, Subset
from smidgen.weights.top_k import top_k


def weights(
    model: nn.Module,
    *,
    fraction: float,
    by: By = "magnitude",
    per_layer: bool = False,
    seed: int = 0,
) -> Subset:
    """Choose the weights with the largest scores.

    Args:
        model: The trained model.
        fraction: Fraction of the weights to choose, in (0, 1]: of all affine layers, or
            of the parameters that have scores.
        by: "magnitude", "random", or scores by parameter name, as
            `smidgen.select.scores` makes them.
        per_layer: Choose that fraction of each parameter rather than over all.
        seed: Seed of a random choice.

    Returns:
        Single entries; at least one, or one of each parameter.
    """
    check_fraction(fraction)
    universe = require_coverage(model).universe
    scores = dict(iterate_scores(model, by, seed))
    groups = [{name: score} for name, score in scores.items()] if per_layer else [scores]
    chosen: dict[str, Tensor] = {}
    for group in groups:
        count = sum(score.numel() for score in group.values())
        chosen |= top_k(group, ceil_fraction(count, fraction))
    settings: dict[str, Json] = {"fraction": fraction, **describe_ranking(by, seed)}
    if per_layer:
        settings["per_layer"] = True
    names = {"magnitude": "magnitude", "random": "random-weights"}
    origin = Origin("weights" if isinstance(by, Mapping) else names[by], settings)
    parts = {name: Entries(indices) for name, indices in chosen.items()}
    return Subset(universe, parts, origin)
