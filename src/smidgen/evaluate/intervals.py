"""Bootstrap intervals: redraw the examples with replacement, take percentiles.

Two calls with the same seed and as many examples see the same redraws, so scores of one
test set are comparable. The global random state is never touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from smidgen.errors import DataError
from smidgen.evaluate import checks

# Indices held at once: 16 MB, whatever the number of examples.
_CHUNK = 2**21
# Of a score, relative to it or to one.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Interval:
    """A value on all examples and the ends of its interval."""

    value: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """Give the three numbers by name, ready for JSON."""
        return asdict(self)


def bootstrap(
    statistic: Callable[[Tensor], float],
    n: int,
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Compute the percentile interval of any statistic of n examples.

    Redraws for which the statistic is NaN (undefined) are left out.

    Args:
        statistic: Given the index of the examples to use, (n,), returns a number.
        n: How many examples there are.
        draws: How many times to redraw them.
        level: The fraction of redraws inside the interval.
        seed: Of the redraws.

    Returns:
        The statistic of all examples with its interval.

    Raises:
        DataError: If the statistic of all examples, or of each redraw, is NaN.
    """
    checks.require_at_least_one("n", n)
    value = float(statistic(torch.arange(n)))

    def row_by_row(rows: Tensor) -> Tensor:
        return torch.tensor([float(statistic(row)) for row in rows], dtype=torch.float64)

    drawn = redraw(row_by_row, n, draws=draws, seed=seed)
    drawn = drawn[~drawn.isnan()]
    if value != value or not len(drawn):
        raise DataError(
            "statistic must be a number for all examples and for some redraws, got "
            "NaN. Check it on torch.arange(n)."
        )
    return percentile_interval(value, drawn, level)


def bootstrap_mean(
    values: Tensor, *, draws: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Compute the percentile interval of the mean of per-example values.

    The same numbers as `bootstrap` with a mean, without its loop.

    Args:
        values: One finite number for each example, (B,).
        draws: How many times to redraw the examples.
        level: The fraction of redraws inside the interval.
        seed: Of the redraws.

    Returns:
        The mean with its interval.
    """
    values = checks.as_vector("values", values, finite=True)
    drawn = redraw(lambda rows: values[rows].mean(-1), len(values), draws=draws, seed=seed)
    return percentile_interval(float(values.mean()), drawn, level)


def paired_difference(
    first_values: Tensor,
    second_values: Tensor,
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Compute the interval of mean(first − second) for scores of the *same* examples.

    An interval that excludes 0 says that the two differ by more than the choice of
    examples explains.

    Args:
        first_values: Scores of one prediction, (B,).
        second_values: Scores of the other, (B,), in the same order.
        draws: How many times to redraw the examples.
        level: The fraction of redraws inside the interval.
        seed: Of the redraws.

    Returns:
        The mean difference with its interval.
    """
    first = checks.as_vector("first_values", first_values, finite=True)
    second = checks.as_vector("second_values", second_values, finite=True)
    checks.require_same_length("second_values", second, "first_values", first)
    apart = first - second
    # The same prediction by two routes differs in its last bits, which is no difference.
    apart = apart.where(apart.abs() > _ROUNDING * first.abs().clamp_min(1), 0.0)
    return bootstrap_mean(apart, draws=draws, level=level, seed=seed)


def redraw(
    statistics: Callable[[Tensor], Tensor], n: int, *, draws: int, seed: int
) -> Tensor:
    """Compute statistics, of indices (K, n) to numbers (K,), of many redraws at once."""
    checks.require_at_least_one("draws", draws)
    generator = torch.Generator().manual_seed(seed)
    chunk = max(1, _CHUNK // n)
    parts = []
    for start in range(0, draws, chunk):
        shape = (min(chunk, draws - start), n)
        parts.append(statistics(torch.randint(n, shape, generator=generator)))
    return torch.cat(parts)


def percentile_interval(value: float, drawn: Tensor, level: float) -> Interval:
    """Make the interval that holds the middle `level` of the drawn numbers."""
    checks.require_fraction("level", level)
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=drawn.dtype)
    low, high = drawn.quantile(tails).tolist()
    return Interval(value, low, high)
