"""Which weights of a small regression network are stochastic: everybody's choice.

The largest, the least certain, any; Sparse-KFAC's rows and columns, the last layer; those
that BayesTune's chain finds worth moving, those that SSVI ends with. All choose from the
same trained network and the same training rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import nn

from smidgen import fit, select
from smidgen.affine import affine_coverage
from smidgen.errors import ArgumentError
from smidgen.fit import SparseTraining
from smidgen.likelihood import Gaussian
from smidgen.problem import Problem
from smidgen.select.ranking import By as Ranking
from smidgen.sparse import sparse_bayesian
from smidgen.study.regression import Tables
from smidgen.subset import Subset

By = Literal[
    "magnitude", "variance", "random", "sparse-kfac", "last-layer", "bayestune", "ssvi"
]
LABELS: dict[By, str] = {
    "magnitude": "largest weights",
    "variance": "largest variances",
    "random": "random weights",
    "sparse-kfac": "rows × columns",
    "last-layer": "last layer",
    "bayestune": "BayesTune's weights",
    "ssvi": "SSVI's weights",
}
_CHAIN_STEPS = 1000
_SPARSE_EPOCHS = 50


def subsets_by(
    problem: Problem,
    tables: Tables,
    by: By,
    percents: Sequence[float],
    *,
    noise: float,
    seed: int,
) -> Iterator[tuple[float, Subset]]:
    """Choose ever more weights of all maps in one way.

    Args:
        problem: The trained network, with unit noise.
        tables: Its data; only training rows are looked at, if any.
        by: Who chooses. The last layer is as large as it is, whatever the percents.
        percents: Percents of all weights.
        noise: Variance of the noise, for those who sample weights: BayesTune and SSVI.
        seed: Seed of all that is random.

    Yields:
        The percentage and the subset.

    Raises:
        ArgumentError: If nobody is called so, or a percentage is none.
    """
    if by not in get_args(By) or not all(0 < each <= 100 for each in percents):
        raise ArgumentError(
            f"by must be one of {get_args(By)} and percents in (0, 100], got {by!r} and "
            f"{list(percents)}."
        )
    if by == "last-layer":
        found = select.last_layer(problem.model)
        yield 100 * found.fraction, found
        return
    noisy = replace(problem, likelihood=Gaussian(1, noise))
    singly = by not in ("sparse-kfac", "ssvi")
    scores = _scores(problem, noisy, tables, by, seed) if singly else None
    for percent in sorted(percents):
        share = percent / 100
        if scores is not None:
            yield percent, select.weights(problem.model, fraction=share, by=scores)
        elif by == "ssvi":
            yield percent, _active(noisy, tables, share, seed)
        else:
            yield percent, _rows_by_columns(problem.model, share)


def _scores(problem: Problem, noisy: Problem, tables: Tables, by: By, seed: int) -> Ranking:
    """Score single weights: what `select.weights` takes."""
    if by == "random":
        generator = torch.Generator().manual_seed(seed)
        return select.scores.random(problem.model, generator)
    if by == "variance":
        everything = select.sparse_kfac(problem.model, percent=100)
        train = tables.loader("train")
        plain = fit.laplace(problem, train, everything, structure="diag", progress=False)
        return select.scores.variance(plain, problem)
    if by == "bayestune":
        chain = fit.langevin(
            noisy,
            tables.shuffled(seed),
            head="none",
            steps=_CHAIN_STEPS,
            burn_in=_CHAIN_STEPS // 2,
            seed=seed,
            progress=False,
        )
        return chain.means
    return "magnitude"


def _active(problem: Problem, tables: Tables, share: float, seed: int) -> Subset:
    """Train a sparse network from the largest weights; take the weights it ends with."""
    network = sparse_bayesian(
        problem.model, density=share, budget="global", start="magnitude", seed=seed
    )
    batches = tables.shuffled(seed)
    found = fit.ssvi(
        replace(problem, model=network),
        batches,
        training=SparseTraining(epochs=_SPARSE_EPOCHS, every=2 * len(batches)),
        seed=seed,
        progress=False,
    )
    return found.network.subset()


def _rows_by_columns(model: nn.Module, share: float) -> Subset:
    """The most rows and columns, the same share of each, that stay within the budget."""
    total = sum(
        torch.Size(shape).numel() for shape in affine_coverage(model).universe.values()
    )
    low, high = 0.0, 100.0
    for _ in range(20):
        middle = (low + high) / 2
        found = select.sparse_kfac(model, percent=max(middle, 1e-3))
        low, high = (middle, high) if found.size <= share * total else (low, middle)
    return select.sparse_kfac(model, percent=max(low, 1e-3))
