"""Which weights of a small network are stochastic: the largest, the least certain, any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, get_args

import torch

from smidgen import fit, select
from smidgen.errors import ArgumentError
from smidgen.problem import Problem
from smidgen.select.ranking import By as Ranking
from smidgen.subset import Subset
from smidgen.types import Batch

By = Literal["magnitude", "variance", "random"]
WHOLE = (100.0,)


def subsets_by(
    problem: Problem,
    train: Sequence[Batch],
    by: By,
    percents: Sequence[float],
    seed: int,
) -> Iterator[tuple[float, Subset]]:
    """Choose ever more single weights of all maps by one score.

    Args:
        problem: The trained network.
        train: Training batches; only "variance" looks at them.
        by: The score: variances are marginal ones of a diagonal posterior.
        percents: Percents of all weights.
        seed: Seed of a random choice.

    Yields:
        The percentage and the subset.

    Raises:
        ArgumentError: If the score or a percentage is none.
    """
    if by not in get_args(By) or not all(0 < each <= 100 for each in percents):
        raise ArgumentError(
            f"by must be one of {get_args(By)} and percents in (0, 100], got {by!r} and "
            f"{list(percents)}."
        )
    scores = ranked_by(problem, train, by, seed)
    for percent in sorted(percents):
        yield percent, select.weights(problem.model, fraction=percent / 100, by=scores)


def ranked_by(problem: Problem, train: Iterable[Batch], by: str, seed: int) -> Ranking:
    """Score single weights: what `select.weights` takes.

    Args:
        problem: The trained network.
        train: Training batches; only "variance" looks at them.
        by: The score.
        seed: Seed of a random one.

    Returns:
        The scores, or what names them.

    Raises:
        ArgumentError: If there is no such score.
    """
    if by == "variance":
        everything = select.sparse_kfac(problem.model, percent=100)
        plain = fit.laplace(problem, train, everything, structure="diag", progress=False)
        return select.scores.variance(plain, problem)
    if by == "random":
        generator = torch.Generator().manual_seed(seed)
        return select.scores.random(problem.model, generator)
    if by != "magnitude":
        raise ArgumentError(f"by must be one of {', '.join(get_args(By))}, got {by!r}.")
    return "magnitude"


def names_of(method: str, by: By, percents: Sequence[float]) -> tuple[str, str]:
    """Name a scheme for records and for people."""
    shown = {"laplace": "Laplace", "swag": "SWAG"}[method]
    if tuple(percents) == WHOLE:
        return f"{method}-full", f"{shown}, all weights"
    kinds = {"magnitude": "largest weights", "variance": "largest variances"}
    return f"{method}-{by}", f"{shown}, {kinds.get(by, 'random weights')}"
