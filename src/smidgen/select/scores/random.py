"""Scores drawn uniformly from [0, 1): the baseline every other score must beat."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from smidgen.weights.affine import require_coverage


def random(model: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    """Score every weight and bias by a random number.

    Args:
        model: The trained model; only its shapes matter.
        seed: Seed of the numbers.

    Returns:
        Scores by parameter name, the same for the same seed.
    """
    return dict(iterate_random_scores(model, seed))


def iterate_random_scores(model: nn.Module, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Draw scores for one parameter after another."""
    generator = torch.Generator().manual_seed(seed)
    for name, shape in require_coverage(model).universe.items():
        # fp64: among millions of fp32 numbers many would be equal.
        yield name, torch.rand(shape, dtype=torch.float64, generator=generator)
