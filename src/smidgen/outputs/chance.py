"""What chance alone does: the gap of an honest model's confidence, and exact bounds of a rate."""

from __future__ import annotations

import torch
from scipy.special import betaincinv
from torch import Tensor


def expected_gap(chances: Tensor) -> float:
    """Compute E|Σ y − Σ p| of independent y ~ Bernoulli(p), exactly.

    Σ y has the Poisson binomial law. It is multiplied out from the laws of single answers,
    two by two, so that m answers take O(m log² m).

    Args:
        chances: The probabilities p, (m,).

    Returns:
        The expected gap, in answers; 0 without any.
    """
    chances = chances.detach().cpu().double().clamp(0, 1)
    laws = torch.stack([1 - chances, chances], -1)
    while len(laws) > 1:
        if len(laws) % 2:
            never = torch.zeros_like(laws[:1])
            never[0, 0] = 1
            laws = torch.cat([laws, never])
        length = 2 * laws.shape[1]
        waves = torch.fft.rfft(laws, length)
        laws = torch.fft.irfft(waves[::2] * waves[1::2], length)
    right = torch.arange(laws.shape[1])
    return float(((right - chances.sum()).abs() * laws).sum())


def binomial_upper_bound(count: int, rows: int, confidence: float) -> float:
    """Bound a rate from above, exactly (Clopper and Pearson, 1934).

    Whatever the rate, the bound of a binomial count is below it with a probability of
    1 − confidence at most.

    Args:
        count: How many of the rows had it.
        rows: Of how many.
        confidence: The probability that the bound holds, in (0, 1).

    Returns:
        The bound, in (0, 1].
    """
    if count >= rows:
        return 1.0
    return float(betaincinv(count + 1, rows - count, confidence))


def binomial_interval(count: int, rows: int, level: float = 0.95) -> tuple[float, float]:
    """Bound a rate from both sides, exactly, each end with half of 1 − level to fail."""
    side = (1 + level) / 2
    low = 1 - binomial_upper_bound(rows - count, rows, side)
    return low, binomial_upper_bound(count, rows, side)
