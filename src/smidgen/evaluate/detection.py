"""Does uncertainty tell shifted or foreign examples from familiar ones?"""

from __future__ import annotations

import torch
from torch import Tensor

from smidgen.evaluate import checks
from smidgen.evaluate.intervals import Interval, percentile_interval


def auroc(inside_scores: Tensor, outside_scores: Tensor) -> float:
    """Compute how often an outside example is the more uncertain; ties count half.

    Args:
        inside_scores: Uncertainty of familiar examples, (B,).
        outside_scores: Uncertainty of shifted or foreign examples, (B',).

    Returns:
        The area under the ROC curve: 0.5 is chance, 1 is perfect.
    """
    inside = checks.as_vector("inside_scores", inside_scores).sort().values
    outside = checks.as_vector("outside_scores", outside_scores)
    # Twice the wins, in whole numbers: one for each inside score below, half for ties.
    below = torch.searchsorted(inside, outside)
    below_or_tied = torch.searchsorted(inside, outside, right=True)
    wins = int((below + below_or_tied).sum())
    return wins / (2 * len(inside) * len(outside))


def bootstrap_auroc(
    inside_scores: Tensor,
    outside_scores: Tensor,
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Compute the percentile interval of `auroc`, redrawing both sides.

    Args:
        inside_scores: Uncertainty of familiar examples, (B,).
        outside_scores: Uncertainty of shifted or foreign examples, (B',).
        draws: How many times to redraw the examples.
        level: The fraction of redraws inside the interval.
        seed: Of the redraws.

    Returns:
        The area with its interval.
    """
    checks.require_at_least_one("draws", draws)
    value = auroc(inside_scores, outside_scores)
    generator = torch.Generator().manual_seed(seed)

    def resample(scores: Tensor) -> Tensor:
        return scores[torch.randint(len(scores), (len(scores),), generator=generator)]

    areas = [auroc(resample(inside_scores), resample(outside_scores)) for _ in range(draws)]
    return percentile_interval(value, torch.tensor(areas, dtype=torch.float64), level)
