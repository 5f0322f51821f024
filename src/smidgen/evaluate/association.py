"""Do two measurements put the examples in the same order?"""

from __future__ import annotations

import torch
from torch import Tensor

from smidgen.errors import DataError
from smidgen.evaluate import checks
from smidgen.evaluate.intervals import Interval, bootstrap

_CONSTANT = 1e-12


def rank_correlation(
    a: Tensor, b: Tensor, *, draws: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Compute Spearman's correlation, with equal values sharing their average rank.

    Redraws in which all values of one side are equal have no correlation and are left out.

    Args:
        a: One measurement of each example, (B,).
        b: Another measurement, (B,).
        draws: How many times to redraw the examples.
        level: The fraction of redraws inside the interval.
        seed: Of the redraws.

    Returns:
        The correlation, in [−1, 1], with its bootstrap interval.

    Raises:
        DataError: If all values of one side are equal.
    """
    a, b = _as_varied(a=a, b=b)
    return bootstrap(
        lambda rows: float(correlations(average_ranks(a[rows]), average_ranks(b[rows]))),
        len(a),
        draws=draws,
        level=level,
        seed=seed,
    )


def paired_rank_difference(
    first: Tensor,
    second: Tensor,
    values: Tensor,
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Compute how much better the first follows the values than the second, by rank.

    Args:
        first: One measurement of each example, (B,).
        second: Another of the same examples, (B,); its correlation is subtracted.
        values: What both should follow, (B,).
        draws: How many times to redraw the examples.
        level: The fraction of redraws inside the interval.
        seed: Of the redraws.

    Returns:
        The difference of the two `rank_correlation` with its bootstrap interval.
    """
    first, second, values = _as_varied(first=first, second=second, values=values)

    def gap(rows: Tensor) -> float:
        truth = average_ranks(values[rows])
        ours, theirs = (
            float(correlations(average_ranks(side[rows]), truth))
            for side in (first, second)
        )
        return ours - theirs

    return bootstrap(gap, len(values), draws=draws, level=level, seed=seed)


def _as_varied(**measurements: Tensor) -> list[Tensor]:
    """Return vectors of one length, each with at least two different values."""
    (first, *_), found = measurements, []
    for name, values in measurements.items():
        values = checks.as_vector(name, values)
        found.append(values)
        checks.require_same_length(name, values, first, found[0])
        if (values == values[0]).all():
            raise DataError(
                f"{name} must hold at least two different values, got {len(values)} "
                f"times {float(values[0])}. Measure more varied examples."
            )
    return found


def average_ranks(values: Tensor) -> Tensor:
    """Rank values from 1, with equal values sharing their average rank, (B,)."""
    ordered = values.sort().values
    below = torch.searchsorted(ordered, values)
    below_or_tied = torch.searchsorted(ordered, values, right=True)
    return (below + below_or_tied + 1).double() / 2


def correlations(a: Tensor, b: Tensor) -> Tensor:
    """Compute Pearson's correlations over the last axis; NaN where a side is constant."""
    a, b = (side - side.mean(-1, keepdim=True) for side in (a, b))
    lengths = a.norm(dim=-1) * b.norm(dim=-1)
    # A constant side may differ from its mean by rounding.
    return ((a * b).sum(-1) / lengths).where(lengths > _CONSTANT, torch.nan)
