"""SWAG on a percentage of a regression's weights, its noise chosen on validation data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smidgen import fit
from smidgen.fit.swag import SwagOptions
from smidgen.prediction import predict_samples_batches
from smidgen.study.cell import Job, read_settings
from smidgen.study.regression import Level, level_results, needed_problem, read_tables
from smidgen.study.single_weights import By, names_of, subsets_by


@dataclass(frozen=True, kw_only=True)
class Settings(SwagOptions):
    """Which weights, how many, and how they are collected."""

    by: By
    percents: tuple[float, ...] = (1, 2, 5, 8, 14, 23, 37, 61)
    rates: tuple[float, ...] | None = (1e-4, 1e-3, 1e-2, 5e-2)
    steps: int = 800
    every: int = 2
    trial_steps: int = 200
    samples: int = 64


def run(job: Job) -> Mapping[str, Any]:
    """Collect and tune a posterior for each percentage."""
    told = read_settings(Settings, job.settings, "uci-swag")
    tables = read_tables(job)
    problem = needed_problem(job, tables)
    train, validation, test = map(tables.loader, ("train", "validation", "test"))
    levels = []
    for percent, subset in subsets_by(problem, train, told.by, told.percents, job.seed):
        posterior = fit.swag(
            problem,
            tables.shuffled(job.seed),
            subset,
            validation=validation,
            **told.arguments(),
            seed=job.seed,
        )
        posterior = fit.tune_samples(posterior, problem, validation, samples=told.samples)
        assert posterior.tuning is not None
        levels.append(
            Level(
                percent=percent,
                weights=subset.size,
                fraction=subset.fraction,
                floats=posterior.floats,
                validation_nll=posterior.tuning.chosen_nll,
                predictive=predict_samples_batches(
                    posterior, problem, test, samples=told.samples
                ),
                settings={
                    "learning_rate": posterior.learning_rate,
                    "noise": posterior.likelihood.scale,
                },
            )
        )
    name, label = names_of("swag", told.by, told.percents)
    return level_results(name, label, levels, tables.test[1])
