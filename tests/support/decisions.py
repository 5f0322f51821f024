"""Worlds with known probabilities, for tests of what rules promise."""

from __future__ import annotations

from math import sqrt

import torch

from smidgen.outputs.predictive import CategoricalPredictive, GaussianPredictive


def at_most(rate: float, draws: int, z: float = 3.5) -> float:
    """How often an event of at most this probability may happen, but for one test in 4,000."""
    return rate + z * sqrt(rate * (1 - rate) / draws)


def make_generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_classes(
    rows: int, classes: int = 3, *, seed: int = 0, with_variance: bool = False
):
    """An overconfident classifier's predictive, and targets of the true probabilities."""
    generator = make_generator(seed)
    logits = 1.5 * torch.randn(rows, classes, generator=generator).double()
    targets = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(1)
    predictive = CategoricalPredictive.from_logits(2 * logits)
    if with_variance:
        root = torch.randn(rows, classes, classes, generator=generator).double()
        root = root - root.mean(1, keepdim=True)
        predictive = CategoricalPredictive(
            predictive.log_probs, predictive.logits, root @ root.mT
        )
    return predictive, targets


def make_numbers(rows: int, outputs: int = 1, *, seed: int = 0):
    """A regression whose variance is wrong by a factor, and heavy-tailed targets."""
    generator = make_generator(seed)
    mean, scale = (torch.randn(rows, outputs, generator=generator).double() for _ in "ab")
    variance = (0.5 * scale).exp()
    normal = torch.randn(rows, outputs, generator=generator).double()
    noise = normal / torch.rand(rows, outputs, generator=generator).double().sqrt()
    predictive = GaussianPredictive(mean, variance, torch.full_like(mean, 0.3))
    return predictive, mean + noise * predictive.total_variance.sqrt()
