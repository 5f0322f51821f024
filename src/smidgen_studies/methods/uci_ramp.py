"""One choice of a regression's weights, at ever more of them, each with a posterior."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Posterior
from smidgen.prediction import predict_batches
from smidgen.report.names import label_method
from smidgen.weights.subset import Subset
from smidgen_studies.data.uci import (
    Tables,
    UciLevel,
    level_results,
    load_needed_problem,
    read_tables,
)
from smidgen_studies.engine.cell import Job
from smidgen_studies.methods.uci_choices import SEARCH_SETTINGS, UciSelector, choose_subsets

FitSubset = Callable[[Problem, Tables, Subset], tuple[Posterior, float]]
"""Fits and calibrates the posterior of a subset; returns it and its validation NLL."""

UCI_PERCENTS = (1.0, 2.0, 5.0, 8.0, 14.0, 23.0, 37.0, 61.0)
"""The paper's."""
_WHOLE = (100.0,)


def run_ramp(
    job: Job, method: str, by: UciSelector, percents: Sequence[float], fit_subset: FitSubset
) -> dict[str, Any]:
    """Fit a posterior for each percentage of a regression's weights, and score them."""
    tables = read_tables(job)
    problem = load_needed_problem(job, tables)
    test = tables.loader("test")
    # Validation data gave the network this noise variance.
    noise = job.needs[0].record.results["methods"][0]["noise"]
    chosen = choose_subsets(problem, tables, by, percents, noise=noise, seed=job.seed)
    levels = []
    for percent, subset in chosen:
        posterior, nll = fit_subset(problem, tables, subset)
        settings = posterior.settings()
        # A regression has noise in place of a temperature.
        del settings["temperature"]
        levels.append(
            UciLevel(
                percent=percent,
                weights=subset.size,
                fraction=subset.fraction,
                floats=posterior.floats,
                validation_nll=nll,
                predictive=predict_batches(posterior, problem, test),
                settings={**settings, "noise": posterior.likelihood.scale},
            )
        )
    results = level_results(*name_scheme(method, by, percents), levels, tables.test[1])
    return {**results, "chosen_by": {"name": by, **SEARCH_SETTINGS.get(by, {})}}


def name_scheme(method: str, by: UciSelector, percents: Sequence[float]) -> tuple[str, str]:
    """Name a scheme for records and for people."""
    if tuple(percents) == _WHOLE:
        return f"{method}-full", label_method("full", "uci", family=method)
    return f"{method}-{by}", label_method(by, "uci", family=method)
