"""Which weights of a small network are stochastic: the largest, the least certain, any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

import torch

from smidgen import fit, select
from smidgen.errors import ArgumentError
from smidgen.posterior import Posterior
from smidgen.problem import Problem
from smidgen.select.ranking import By as Ranking
from smidgen.study.cell import Job
from smidgen.study.comparison import posterior_settings
from smidgen.study.predicting import predicted
from smidgen.study.regression import (
    Level,
    Tables,
    level_results,
    needed_problem,
    read_tables,
)
from smidgen.subset import Subset
from smidgen.swag import SwagPosterior
from smidgen.types import Batch

Posteriors = Callable[[Problem, Tables, Subset], tuple[Posterior | SwagPosterior, float]]
"""Fits and tunes a posterior of a subset; gives it, and its NLL on validation data."""

By = Literal["magnitude", "variance", "random"]
WHOLE = (100.0,)
PERCENTS = (1.0, 2.0, 5.0, 8.0, 14.0, 23.0, 37.0, 61.0)
"""The paper's."""


def ramped(
    job: Job, method: str, by: By, percents: Sequence[float], fitted: Posteriors
) -> dict[str, Any]:
    """Fit a posterior for each percentage of a regression's weights, and score them.

    Args:
        job: The job, which needs a trained network.
        method: "laplace" or "swag".
        by: The score that chooses weights.
        percents: Percents of all weights.
        fitted: Fits and tunes the posterior of each.

    Returns:
        The results of a record: every level, and the one validation data choose.
    """
    tables = read_tables(job)
    problem = needed_problem(job, tables)
    train, test = tables.loader("train"), tables.loader("test")
    levels = []
    for percent, subset in subsets_by(problem, train, by, percents, job.seed):
        posterior, nll = fitted(problem, tables, subset)
        settings = posterior_settings(posterior)
        # A regression has noise in place of a temperature.
        del settings["temperature"]
        levels.append(
            Level(
                percent=percent,
                weights=subset.size,
                fraction=subset.fraction,
                floats=posterior.floats,
                validation_nll=nll,
                predictive=predicted(posterior, problem, test),
                settings={**settings, "noise": posterior.likelihood.scale},
            )
        )
    return level_results(*names_of(method, by, percents), levels, tables.test[1])


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
