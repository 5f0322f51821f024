"""Which weights of a small regression network are stochastic: everybody's choice.

The largest, the least certain, any; Sparse-KFAC's rows and columns, the last layer; those
that BayesTune's chain finds worth moving, those that SSVI ends with. All choose from the
same trained network and the same training rows; BayesTune's prior is centred there too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import nn

from smidgen import fit, select
from smidgen.errors import ArgumentError
from smidgen.fit import SsviSettings
from smidgen.outputs.likelihood import Gaussian
from smidgen.outputs.problem import Problem
from smidgen.sparse import SparseSettings, make_sparse
from smidgen.weights.affine import require_coverage
from smidgen.weights.subset import Subset
from smidgen.workflows.variances import marginal_variances
from smidgen_studies.data.uci import Tables

UciSelector = Literal[
    "magnitude",
    "variance",
    "random",
    "sparse-kfac",
    "last-layer",
    "bayestune",
    "bayestune-warm",
    "ssvi",
]
_CHAIN: Mapping[str, Any] = {"steps": 1000, "burn_in": 500, "noise_discount": 1.0}
SEARCH_SETTINGS: Mapping[UciSelector, Mapping[str, Any]] = {
    "bayestune": {**_CHAIN, "temperature": 1e-5},
    "bayestune-warm": {**_CHAIN, "temperature": 1.0},
    "ssvi": {"epochs": 50, "learning_rate": 3e-3},
}
"""What those are told that look for weights by training."""

_BISECTIONS = 20
Choose = Callable[[float], Subset]
"""Chooses a share of all weights."""


def choose_subsets(
    problem: Problem,
    tables: Tables,
    by: UciSelector,
    percents: Sequence[float],
    *,
    noise: float,
    seed: int,
) -> Iterator[tuple[float, Subset]]:
    """Choose ever more weights of all layers in one way."""
    if by not in get_args(UciSelector):
        raise ArgumentError(
            f"by must be one of {', '.join(get_args(UciSelector))}, got {by!r}."
        )
    if not all(0 < percent <= 100 for percent in percents):
        raise ArgumentError(f"percents must be in (0, 100], got {list(percents)}.")
    if by == "last-layer":
        found = select.last_layer(problem, tables.loader("train"))
        yield 100 * found.fraction, found
        return
    noisy = replace(problem, likelihood=Gaussian(1, noise))
    choose = _chooser(problem, noisy, tables, by, seed)
    for percent in sorted(percents):
        yield percent, choose(percent / 100)


def _chooser(
    problem: Problem, noisy: Problem, tables: Tables, by: UciSelector, seed: int
) -> Choose:
    model = problem.model
    match by:
        case "sparse-kfac":
            return partial(_rows_by_columns, model)
        case "ssvi":
            return partial(_active, noisy, tables, seed)
        case "random":
            scores = select.scores.random(model, seed)
        case "variance":
            scores = marginal_variances(problem, tables.loader("train"))
        case "bayestune" | "bayestune-warm":
            batches = tables.shuffled(seed)
            settings = fit.LangevinSettings(**SEARCH_SETTINGS[by], head="none")
            scores = fit.langevin(
                noisy, batches, settings=settings, seed=seed, progress=False
            ).means
        case _:
            scores = select.scores.magnitude(model)
    return lambda share: select.weights(model, fraction=share, by=scores)


def _active(problem: Problem, tables: Tables, seed: int, share: float) -> Subset:
    """Train a sparse network from the largest weights; take the weights it ends with."""
    network = make_sparse(
        problem.model,
        density=share,
        start="magnitude",
        settings=SparseSettings(budget="global"),
        seed=seed,
    )
    batches = tables.shuffled(seed)
    found = fit.ssvi(
        replace(problem, model=network),
        batches,
        settings=SsviSettings(**SEARCH_SETTINGS["ssvi"], every=2 * len(batches)),
        seed=seed,
        progress=False,
    )
    return found.network.subset()


def _rows_by_columns(model: nn.Module, share: float) -> Subset:
    """The most rows and columns, the same share of each, that stay within the budget."""
    total = sum(
        torch.Size(shape).numel() for shape in require_coverage(model).universe.values()
    )
    # A row by a column of each layer is the least there is.
    best = select.sparse_kfac(model, percent=1e-3)
    low, high = 0.0, 100.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        found = select.sparse_kfac(model, percent=middle)
        if found.size <= share * total:
            low, best = middle, found
        else:
            high = middle
    if best.size > share * total:
        raise ArgumentError(
            f"percents must leave room for a row by a column of each layer, {best.size} "
            f"weights, got {100 * share:g} % of {total}. Take more."
        )
    return best
