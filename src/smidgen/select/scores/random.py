"""Scores drawn uniformly from [0, 1): the baseline every other score must beat."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError
from smidgen.weights.affine import require_coverage


def random(model: nn.Module, generator: torch.Generator | None) -> dict[str, Tensor]:
    """Score every weight and bias by a draw of its own.

    Args:
        model: The trained model; only its shapes are read.
        generator: Source of the draws.

    Returns:
        Scores by parameter name, the same for the same seed.
    """
    return dict(each_random(model, generator))


def each_random(
    model: nn.Module, generator: torch.Generator | None
) -> Iterator[tuple[str, Tensor]]:
    """Draw scores for one parameter after another.

    Args:
        model: The trained model; only its shapes are read.
        generator: Source of the draws.

    Yields:
        A parameter's name and its scores.

    Raises:
        ArgumentError: If there is no generator.
    """
    if not isinstance(generator, torch.Generator):
        raise ArgumentError(
            f"generator must be a torch.Generator for a random choice, got {generator!r}. "
            "Pass torch.Generator().manual_seed(0)."
        )
    for name, shape in require_coverage(model).universe.items():
        # fp64: among millions of fp32 draws many would be equal.
        drawn = torch.rand(
            shape, dtype=torch.float64, device=generator.device, generator=generator
        )
        yield name, drawn.cpu()
