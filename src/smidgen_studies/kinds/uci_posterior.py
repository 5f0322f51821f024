"""Laplace and SWAG on ever more of a regression's weights, chosen in one way.

Prior precision and noise of Laplace, learning rate and noise of SWAG and the percentage of
weights are chosen on validation data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from smidgen import calibrate, fit
from smidgen.outputs.problem import Problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.swag import SwagPosterior
from smidgen.prediction import predict_batches
from smidgen.report.names import label_method
from smidgen.weights.subset import Subset
from smidgen.workflows.ramp.swag import SwagOptions
from smidgen_studies.data.uci import (
    TableData,
    Tables,
    UciLevel,
    level_results,
    load_needed_problem,
    read_tables,
)
from smidgen_studies.engine.cell import Job
from smidgen_studies.engine.settings import Percents, Rates
from smidgen_studies.methods.uci_choices import (
    SEARCH_SETTINGS,
    UciSelector,
    choose_subsets,
)


@dataclass(frozen=True, kw_only=True)
class _RampSettings:
    """Who chooses the weights, and how many; the percents are the paper's."""

    family: ClassVar[str]
    by: UciSelector
    percents: Percents = (1.0, 2.0, 5.0, 8.0, 14.0, 23.0, 37.0, 61.0)

    @property
    def scheme(self) -> tuple[str, str]:
        """Its name in records, and for readers."""
        name = "full" if self.percents == (100.0,) else self.by
        return f"{self.family}-{name}", label_method(name, "uci", family=self.family)

    @property
    def reported_methods(self) -> tuple[str, ...]:
        """Names of the methods that its record has."""
        return (self.scheme[0],)


@dataclass(frozen=True, kw_only=True)
class UciLaplaceSettings(_RampSettings):
    """Which weights, and the structure of their posterior."""

    family = "laplace"
    structure: Literal["full", "diag", "kron", "ekfac"] = "full"

    def fit_subset(
        self, problem: Problem, tables: Tables, subset: Subset, _: int
    ) -> LaplacePosterior:
        """Fit and calibrate the posterior of a subset."""
        train, validation = tables.loader("train"), tables.loader("validation")
        posterior = fit.laplace(problem, train, subset, structure=self.structure)
        return calibrate(posterior, problem, validation)


@dataclass(frozen=True, kw_only=True)
class UciSwagSettings(_RampSettings, SwagOptions):
    """Which weights, and how their moments are collected."""

    family = "swag"
    rates: Rates | None = (1e-4, 1e-3, 1e-2, 5e-2)
    steps: int = 800
    every: int = 2
    trial_steps: int = 200
    samples: int = 64

    def fit_subset(
        self, problem: Problem, tables: Tables, subset: Subset, seed: int
    ) -> SwagPosterior:
        """Collect and calibrate the posterior of a subset."""
        train, validation = tables.shuffled(seed), tables.loader("validation")
        settings = self.settings()
        posterior = fit.swag(
            problem, train, subset, validation=validation, settings=settings, seed=seed
        )
        return calibrate(posterior, problem, validation, samples=self.samples)


class _Kind:
    Data, ON_PROCESSOR = TableData, True

    @staticmethod
    def run(job: Job) -> Mapping[str, Any]:
        """Fit a posterior for each percentage, and score them on test data."""
        settings: UciLaplaceSettings | UciSwagSettings = job.settings
        tables = read_tables(job)
        problem = load_needed_problem(job, tables)
        # Validation data gave the network this noise variance.
        noise = job.needs[0].record.results["methods"][0]["noise"]
        by, seed = settings.by, job.seed
        subsets = choose_subsets(
            problem, tables, by, settings.percents, noise=noise, seed=seed
        )
        levels = []
        for percent, subset in subsets:
            posterior = settings.fit_subset(problem, tables, subset, seed)
            assert posterior.calibration is not None
            assert posterior.calibration.chosen_nll is not None
            noted = posterior.settings()
            # A regression has noise in place of a temperature.
            del noted["temperature"]
            levels.append(
                UciLevel(
                    percent=percent,
                    weights=subset.size,
                    fraction=subset.fraction,
                    floats=posterior.floats,
                    validation_nll=posterior.calibration.chosen_nll,
                    predictive=predict_batches(posterior, problem, tables.loader("test")),
                    settings={**noted, "noise": posterior.likelihood.scale},
                )
            )
        results = level_results(*settings.scheme, levels, tables.test[1])
        return {**results, "chosen_by": {"name": by, **SEARCH_SETTINGS.get(by, {})}}


class Laplace(_Kind):
    """The kind `uci-laplace`."""

    Settings = UciLaplaceSettings


class Swag(_Kind):
    """The kind `uci-swag`."""

    Settings = UciSwagSettings
