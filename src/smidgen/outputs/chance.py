"""What chance alone does: the gap between right answers and confidence of an honest model."""

from __future__ import annotations

import torch
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
