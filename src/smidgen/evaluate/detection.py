"""Does uncertainty tell shifted or foreign examples from familiar ones?"""

from __future__ import annotations

import torch
from torch import Tensor

from smidgen.evaluate import checks
from smidgen.evaluate.intervals import Interval, percentiles


def auroc(inside_scores: Tensor, outside_scores: Tensor) -> float:
    """Probability that an outside example is the more uncertain; ties count half.

    Args:
        inside_scores: Uncertainty of familiar examples, (B,).
        outside_scores: Uncertainty of shifted or foreign examples, (B',).

    Returns:
        The area under the ROC curve: 0.5 is chance, 1 tells all apart.
    """
    inside = checks.vector("inside_scores", inside_scores).sort().values
    outside = checks.vector("outside_scores", outside_scores)
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
    generator: torch.Generator | None = None,
) -> Interval:
    """Percentile interval of `auroc`, redrawing both sides.

    Args:
        inside_scores: Uncertainty of familiar examples, (B,).
        outside_scores: Uncertainty of shifted or foreign examples, (B',).
        draws: How many times the examples are redrawn.
        level: The share of redraws inside the interval.
        generator: Source of the redraws.

    Returns:
        The area with its interval.
    """
    checks.at_least_one("draws", draws)
    value = auroc(inside_scores, outside_scores)
    if generator is None:
        generator = torch.Generator().manual_seed(0)

    def redrawn(scores: Tensor) -> Tensor:
        return scores[torch.randint(len(scores), (len(scores),), generator=generator)]

    found = [auroc(redrawn(inside_scores), redrawn(outside_scores)) for _ in range(draws)]
    return percentiles(value, torch.tensor(found, dtype=torch.float64), level)
