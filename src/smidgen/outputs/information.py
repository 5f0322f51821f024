"""Entropy and mutual information of distributions given by log-probabilities."""

from __future__ import annotations

import torch
from torch import Tensor


def entropy_of(log_probs: Tensor) -> Tensor:
    """Entropy in nats of distributions (..., C)."""
    return torch.special.entr(log_probs.exp()).sum(-1)


def mixture_information(log_probs: Tensor) -> Tensor:
    """H[E p] − E H[p] of mixtures of S equally likely distributions, (..., S, C) to (...)."""
    probs = log_probs.exp()
    total = torch.special.entr(probs.mean(-2)).sum(-1)
    within = torch.special.entr(probs).sum(-1).mean(-1)
    return (total - within).clamp_min(0)
