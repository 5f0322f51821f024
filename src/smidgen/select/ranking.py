"""How selectors rank: which score they use, and how many of the largest they choose.

Ties go to the lower index. Single weights are picked by the same rule, in
`weights.top_k`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError, is_number
from smidgen.select.scores.magnitude import iterate_magnitudes
from smidgen.select.scores.random import iterate_random_scores
from smidgen.types import Json, Shape
from smidgen.weights.affine import ceil_fraction, require_coverage

By = str | Mapping[str, Tensor]
"""'magnitude', 'random', or scores of affine parameters by name."""


def iterate_scores(model: nn.Module, by: By, seed: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Yield each affine parameter's name and scores, fp64 on the CPU, in the model's order."""
    if isinstance(by, Mapping):
        universe = require_coverage(model).universe
        check_scores("by", by, universe)
        names = (name for name in universe if name in by)
        return ((name, by[name].detach().double().cpu()) for name in names)
    if by == "magnitude":
        return iterate_magnitudes(model)
    if by == "random":
        return iterate_random_scores(model, seed)
    raise ArgumentError(
        f"by must be 'magnitude', 'random' or scores by parameter name, got {by!r}. Make "
        "scores with smidgen.select.scores."
    )


def describe_ranking(by: By, seed: int) -> dict[str, Json]:
    """Note for a subset's origin what the name of its selector does not tell."""
    if isinstance(by, Mapping):
        return {"by": "scores"}
    return {"seed": seed} if by == "random" else {}


def pick_largest(scores: Tensor, fraction: float) -> Tensor:
    """Pick a fraction of a vector of scores, at least one; indices ascend, on the CPU."""
    count = ceil_fraction(scores.numel(), fraction)
    order = scores.double().sort(descending=True, stable=True).indices
    return order[:count].sort().values.to("cpu", torch.int64)


def check_percent(percent: float) -> float:
    """Check a percentage of rows and of columns; return it as a fraction, in (0, 1]."""
    return _check("percent", percent, 100, "percent of rows and of columns: try 10")


def check_fraction(fraction: float) -> float:
    """Check a fraction of the weights, in (0, 1], and return it."""
    return _check("fraction", fraction, 1, "a fraction of the weights: try 0.01")


def _check(name: str, value: float, largest: int, what: str) -> float:
    if not is_number(value) or not 0 < value <= largest:
        raise ArgumentError(
            f"{name} must be in (0, {largest}], got {value!r}. It is {what}."
        )
    return value / largest


def check_scores(
    argument: str, scores: Mapping[str, Tensor], shapes: Mapping[str, Shape]
) -> None:
    """Refuse scores that do not fit the shapes by parameter name, or are not numbers."""
    rule = f"{argument} must map parameter names to scores of their shape"
    advice = "Print smidgen.coverage(model).universe to see names and shapes."
    if not scores:
        raise ArgumentError(f"{rule}, got none. {advice}")
    for name, score in scores.items():
        if not isinstance(score, Tensor):
            raise ArgumentError(f"{rule}, got a {type(score).__name__} for {name!r}.")
        if shapes.get(name) != tuple(score.shape):
            raise ArgumentError(
                f"{rule}, got {name!r} of shape {tuple(score.shape)}. {advice}"
            )
        if score.isnan().any():
            raise ArgumentError(
                f"{argument} must hold numbers, got NaN for {name!r}. Score the weights again."
            )
