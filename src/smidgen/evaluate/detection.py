"""Does uncertainty tell shifted or foreign examples from familiar ones?"""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

import torch
from torch import Tensor

from smidgen.errors import DataError
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
    inside = checks.as_vector("inside_scores", inside_scores)
    outside = checks.as_vector("outside_scores", outside_scores)
    return int(_count_below(outside, inside).sum()) / (2 * len(inside) * len(outside))


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


def auroc_interval(
    inside_scores: Tensor, outside_scores: Tensor, *, level: float = 0.95
) -> Interval:
    """Compute `auroc` with an interval of its variance, without redraws.

    The variance is that of DeLong et al. (1988); the interval is cut at 0 and 1. A side of
    one example has no variance to be seen, so it counts as none.

    Args:
        inside_scores: Uncertainty of familiar examples, (B,).
        outside_scores: Uncertainty of shifted or foreign examples, (B',).
        level: The probability of the interval.

    Returns:
        The area with its interval.
    """
    checks.require_fraction("level", level)
    value = auroc(inside_scores, outside_scores)
    inside, outside = inside_scores.double(), outside_scores.double()
    variance = 0.0
    for mine, other in ((inside, outside), (outside, inside)):
        if len(mine) > 1:
            below = _count_below(mine, other) / (2 * len(other))
            variance += float(below.var()) / len(mine)
    half = NormalDist().inv_cdf((1 + level) / 2) * sqrt(variance)
    return Interval(value, max(0.0, value - half), min(1.0, value + half))


def paired_auroc_difference(
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    *,
    level: float = 0.95,
) -> Interval:
    """Compute the difference of two `auroc` on the *same* examples.

    Its variance is that of DeLong et al. (1988): how often each inside example is below the
    outside ones, and each outside example above the inside ones, by the first uncertainty
    less that by the second.

    Args:
        first: One uncertainty, of familiar examples (B,) and of shifted ones (B',).
        second: The other, of the same examples; its area is subtracted.
        level: The probability of the interval.

    Returns:
        The difference with its interval.

    Raises:
        DataError: If there are fewer than two examples on a side.
    """
    checks.require_fraction("level", level)
    sides = [
        (checks.as_vector("inside_scores", a), checks.as_vector("outside_scores", b))
        for a, b in (first, second)
    ]
    for name, ours, theirs in zip(("inside_scores", "outside_scores"), *sides, strict=True):
        checks.require_same_length(f"second {name}", theirs, f"first {name}", ours)
        if len(ours) < 2:
            raise DataError(f"{name} must be two or more, got {len(ours)}. Pass more data.")
    variance = 0.0
    for mine, other in ((0, 1), (1, 0)):
        # How much of the other side lies below each example, (B,) or (B',).
        ours, theirs = (
            _count_below(side[mine], side[other]) / (2 * len(side[other])) for side in sides
        )
        variance += float((ours - theirs).var()) / len(ours)
    value = auroc(*first) - auroc(*second)
    half = NormalDist().inv_cdf((1 + level) / 2) * sqrt(variance)
    return Interval(value, value - half, value + half)


def _count_below(values: Tensor, others: Tensor) -> Tensor:
    """Count, for each value, twice the others below it and once those that equal it."""
    others = others.sort().values
    below = torch.searchsorted(others, values)
    return below + torch.searchsorted(others, values, right=True)
