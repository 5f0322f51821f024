"""Do two measurements order the examples alike?"""

from __future__ import annotations

import torch
from torch import Tensor

from smidgen.errors import DataError
from smidgen.evaluate import checks
from smidgen.evaluate.intervals import Interval, bootstrap

_CONSTANT = 1e-12


def rank_correlation(
    a: Tensor,
    b: Tensor,
    *,
    draws: int = 1000,
    level: float = 0.95,
    generator: torch.Generator | None = None,
) -> Interval:
    """Spearman's correlation, equal values sharing their average rank.

    Redraws in which all values of one side are equal have none and are left out.

    Args:
        a: One measurement of each example, (B,).
        b: Another one, (B,).
        draws: How many times the examples are redrawn.
        level: The share of redraws inside the interval.
        generator: Source of the redraws.

    Returns:
        The correlation, in [−1, 1], with its bootstrap interval.

    Raises:
        DataError: If all values of one side are equal.
    """
    a, b = checks.vector("a", a), checks.vector("b", b)
    checks.same_length("b", b, "a", a)
    for name, values in (("a", a), ("b", b)):
        if (values == values[0]).all():
            raise DataError(
                f"{name} must be of two or more different values, got {len(values)} "
                f"times {float(values[0])}. Measure more varied examples."
            )
    return bootstrap(
        lambda rows: float(correlations(average_ranks(a[rows]), average_ranks(b[rows]))),
        len(a),
        draws=draws,
        level=level,
        generator=generator,
    )


def average_ranks(values: Tensor) -> Tensor:
    """Ranks from 1, equal values sharing the average of theirs, (B,)."""
    ordered = values.sort().values
    below = torch.searchsorted(ordered, values)
    below_or_tied = torch.searchsorted(ordered, values, right=True)
    return (below + below_or_tied + 1).double() / 2


def correlations(a: Tensor, b: Tensor) -> Tensor:
    """Pearson's correlations over the last axis; NaN where one side is constant."""
    a, b = (each - each.mean(-1, keepdim=True) for each in (a, b))
    lengths = a.norm(dim=-1) * b.norm(dim=-1)
    found = (a * b).sum(-1) / lengths
    # A constant side may be off its mean by rounding.
    return found.where(lengths > _CONSTANT, torch.nan)
