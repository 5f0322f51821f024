"""Laplace with the whole GGN of a percentage of a regression's weights.

Prior precision and noise are chosen together on validation data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smidgen import fit
from smidgen.prediction import predict_batches
from smidgen.study.cell import Job, read_settings
from smidgen.study.comparison import posterior_settings
from smidgen.study.regression import Level, level_results, needed_problem, read_tables
from smidgen.study.single_weights import By, names_of, subsets_by


@dataclass(frozen=True)
class Settings:
    """Which weights, and how many."""

    by: By
    percents: tuple[float, ...] = (1, 2, 5, 8, 14, 23, 37, 61)
    structure: str = "full"


def run(job: Job) -> Mapping[str, Any]:
    """Fit and tune a posterior for each percentage."""
    told = read_settings(Settings, job.settings, "uci-laplace")
    tables = read_tables(job)
    problem = needed_problem(job, tables)
    train, validation, test = map(tables.loader, ("train", "validation", "test"))
    levels = []
    for percent, subset in subsets_by(problem, train, told.by, told.percents, job.seed):
        posterior = fit.laplace(problem, train, subset, structure=told.structure)
        posterior = fit.tune_precision(posterior, problem, validation)
        assert posterior.tuning is not None
        assert posterior.tuning.chosen_nll is not None
        settings = posterior_settings(posterior)
        del settings["temperature"]
        levels.append(
            Level(
                percent=percent,
                weights=subset.size,
                fraction=subset.fraction,
                floats=posterior.floats,
                validation_nll=posterior.tuning.chosen_nll,
                predictive=predict_batches(posterior, problem, test),
                settings={**settings, "noise": posterior.likelihood.scale},
            )
        )
    name, label = names_of("laplace", told.by, told.percents)
    return level_results(name, label, levels, tables.test[1])
