"""By what a selector ranks: the name of a score, or scores that are given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError
from smidgen.select.scores.magnitude import each_magnitude
from smidgen.select.scores.random import each_random
from smidgen.types import Shape
from smidgen.weights.affine import require_coverage

By = str | Mapping[str, Tensor]
"""'magnitude', 'random', or scores of affine parameters by name."""


def ranking(
    model: nn.Module, by: By, generator: torch.Generator | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Go through the scores of one affine parameter after another.

    Args:
        model: The trained model; it is only read.
        by: "magnitude", "random", or scores by parameter name.
        generator: Source of random scores; required for them.

    Returns:
        Names and scores of the parameter's shape, fp64 on the CPU, in the model's order;
        only those of given scores.

    Raises:
        ArgumentError: If the score is unknown, or given scores do not fit.
    """
    if isinstance(by, Mapping):
        return _given(require_coverage(model).universe, by)
    if by == "magnitude":
        return each_magnitude(model)
    if by == "random":
        return each_random(model, generator)
    raise ArgumentError(
        f"by must be 'magnitude', 'random' or scores by parameter name, got {by!r}. Make "
        "scores with smidgen.select.scores."
    )


def _given(
    universe: Mapping[str, Shape], by: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """Check given scores, all before the first is used."""
    advice = "Print smidgen.coverage(model).universe to see names and shapes."
    rule = "by must map names of affine parameters to scores of their shape"
    if not by:
        raise ArgumentError(f"{rule}, got none. {advice}")
    for name, score in by.items():
        if not isinstance(score, Tensor):
            raise ArgumentError(f"{rule}, got a {type(score).__name__} for {name!r}.")
        if universe.get(name) != tuple(score.shape):
            raise ArgumentError(
                f"{rule}, got {name!r} of shape {tuple(score.shape)}. {advice}"
            )
        if score.isnan().any():
            raise ArgumentError(
                f"by must hold numbers, got NaN in the scores of {name!r}. Score the "
                "weights again."
            )
    names = (name for name in universe if name in by)
    return ((name, by[name].detach().double().cpu()) for name in names)
