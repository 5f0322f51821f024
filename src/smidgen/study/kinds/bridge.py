"""One way to choose weights, and both posteriors on what it chose.

Each paper has its own: BayesTune's scales, SSVI's active set, Sparse-KFAC's rows and
columns, the largest weights, the least certain ones, the last layer. Here all of them
choose as many weights of one network, and each choice gets the same Laplace posterior
(the whole GGN of the chosen weights) and the same SWAG.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from smidgen import fit, select
from smidgen.affine import affine_coverage
from smidgen.fit import SparseTraining
from smidgen.fit.swag import SwagOptions
from smidgen.likelihood import Categorical
from smidgen.posterior import Posterior
from smidgen.problem import Problem
from smidgen.sparse import sparse_bayesian
from smidgen.study.cell import Job, read_settings
from smidgen.study.comparison import compare, posterior_method
from smidgen.study.image_data import Images, read_images, scoring
from smidgen.study.kinds.image_map import needed_networks
from smidgen.study.single_weights import ranked_by
from smidgen.subset import Subset
from smidgen.swag import SwagPosterior

CHOICES = {
    "random": "random weights",
    "magnitude": "largest weights",
    "variance": "largest variances",
    "sparse-kfac": "rows × columns",
    "last-layer": "last layer",
    "bayestune": "BayesTune",
    "ssvi": "SSVI",
}
_FAMILIES = {"laplace": "Laplace", "swag": "SWAG"}


@dataclass(frozen=True, kw_only=True)
class Settings(SwagOptions):
    """Who chooses, how much, and how it looks for it.

    `fraction` is of all weights of affine maps; the last layer is as large as it is.
    """

    by: str
    fraction: float = 0.01
    batch: int = 64
    chain_steps: int = 1000
    sparse_epochs: int = 20
    rates: tuple[float, ...] | None = (1e-3, 1e-2, 5e-2, 0.2)
    steps: int = 400
    every: int = 4
    trial_steps: int = 100
    samples: int = 32


def run(job: Job) -> Mapping[str, Any]:
    """Choose, fit and tune both posteriors, and report them."""
    told = read_settings(Settings, job.settings, "bridge")
    data = read_images(job)
    before, tuned = needed_networks(job, data)
    started = time.process_time()
    subset = chosen(told, before, tuned, data, job.seed)
    seconds = time.process_time() - started
    problem = Problem(tuned, Categorical(data.train.classes))
    train, validation, test = map(scoring, (data.train, data.validation, data.test))
    laplace = fit.laplace(problem, train, subset, structure="full", progress=False)
    swag = fit.swag(
        problem,
        data.shuffled(told.batch, job.seed),
        subset,
        validation=validation,
        **told.arguments(),
        seed=job.seed,
        progress=False,
    )
    posteriors: dict[str, Posterior | SwagPosterior] = {
        "laplace": fit.tune_precision(laplace, problem, validation, progress=False),
        "swag": fit.tune_samples(swag, problem, validation, samples=told.samples),
    }
    methods = [
        posterior_method(f"{family}-{told.by}", each, problem, test, progress=False)
        for family, each in posteriors.items()
    ]
    results = compare(methods, data.test.labels)
    common = {
        "weights": subset.size,
        "fraction": subset.fraction,
        "choosing_seconds": seconds,
    }
    results["methods"] = [
        {**method, **common, "label": f"{_FAMILIES[family]}, {CHOICES[told.by]}"}
        for method, family in zip(results["methods"], posteriors, strict=True)
    ]
    # Of two methods there is no baseline among them.
    results.pop("differences")
    return {**results, "chosen": _shares(subset)}


def chosen(
    told: Settings, before: nn.Module, tuned: nn.Module, data: Images, seed: int
) -> Subset:
    """Choose weights of the tuned network.

    Args:
        told: Who chooses, and how much.
        before: The network before it was tuned, which BayesTune starts from.
        tuned: The network.
        data: Its images.
        seed: Of all that is random.

    Returns:
        The choice.
    """
    problem = Problem(tuned, Categorical(data.train.classes))
    batches = data.shuffled(told.batch, seed)
    match told.by:
        case "last-layer":
            return select.last_layer(tuned)
        case "sparse-kfac":
            return _rows_by_columns(tuned, told.fraction)
        case "bayestune":
            scales = fit.langevin(
                Problem(before, problem.likelihood),
                batches,
                head="none",
                steps=told.chain_steps,
                burn_in=told.chain_steps // 2,
                seed=seed,
                progress=False,
            )
            return select.weights(tuned, fraction=told.fraction, by=scales.means)
        case "ssvi":
            network = sparse_bayesian(
                tuned, density=told.fraction, budget="global", start="magnitude", seed=seed
            )
            training = SparseTraining(
                epochs=told.sparse_epochs, learning_rate=3e-3, every=len(batches)
            )
            found = fit.ssvi(
                Problem(network, problem.likelihood),
                batches,
                training=training,
                seed=seed,
                progress=False,
            )
            return found.network.subset()
        case by:
            scores = ranked_by(problem, scoring(data.train), by, seed)
            return select.weights(tuned, fraction=told.fraction, by=scores)


def _rows_by_columns(model: nn.Module, fraction: float) -> Subset:
    """The most rows and columns, the same share of each, that stay within the budget."""
    total = sum(
        torch.Size(shape).numel() for shape in affine_coverage(model).universe.values()
    )
    low, high = 0.0, 100.0
    for _ in range(20):
        middle = (low + high) / 2
        found = select.sparse_kfac(model, percent=max(middle, 1e-3))
        low, high = (middle, high) if found.size <= fraction * total else (low, middle)
    return select.sparse_kfac(model, percent=max(low, 1e-3))


def _shares(subset: Subset) -> dict[str, float]:
    """How much of each parameter was chosen: choices differ first of all in layers."""
    sizes = subset.sizes()
    return {
        name: sizes.get(name, 0) / torch.Size(shape).numel()
        for name, shape in subset.universe.items()
    }
