"""Laplace and SWAG on a percentage of a regression's weights.

Prior precision and noise of Laplace, learning rate and noise of SWAG are chosen on
validation data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from smidgen import calibrate, fit
from smidgen.fit.swag import SwagOptions
from smidgen.outputs.problem import Problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.swag import SwagPosterior
from smidgen.weights.subset import Subset
from smidgen_studies.data.uci import TableData, Tables
from smidgen_studies.engine.cell import Job
from smidgen_studies.engine.settings import Percents, Rates
from smidgen_studies.methods.uci_choices import UciSelector
from smidgen_studies.methods.uci_ramp import UCI_PERCENTS, name_scheme, run_ramp


@dataclass(frozen=True)
class UciLaplaceSettings:
    """Which weights, and how many."""

    by: UciSelector
    percents: Percents = UCI_PERCENTS
    structure: Literal["full", "diag", "kron", "ekfac"] = "full"

    @property
    def reported_methods(self) -> tuple[str, ...]:
        """Names of the methods that its record has."""
        return (name_scheme("laplace", self.by, self.percents)[0],)


@dataclass(frozen=True, kw_only=True)
class UciSwagSettings(SwagOptions):
    """Which weights, how many, and how their moments are collected."""

    by: UciSelector
    percents: Percents = UCI_PERCENTS
    rates: Rates | None = (1e-4, 1e-3, 1e-2, 5e-2)
    steps: int = 800
    every: int = 2
    trial_steps: int = 200
    samples: int = 64

    @property
    def reported_methods(self) -> tuple[str, ...]:
        """Names of the methods that its record has."""
        return (name_scheme("swag", self.by, self.percents)[0],)


class Laplace:
    """The kind `uci-laplace`."""

    Settings, Data, ON_PROCESSOR = UciLaplaceSettings, TableData, True

    @staticmethod
    def run(job: Job) -> Mapping[str, Any]:
        """Fit and calibrate a Laplace posterior for each percentage."""
        settings: UciLaplaceSettings = job.settings

        def fit_subset(
            problem: Problem, tables: Tables, subset: Subset
        ) -> tuple[LaplacePosterior, float]:
            posterior = fit.laplace(
                problem, tables.loader("train"), subset, structure=settings.structure
            )
            posterior = calibrate(posterior, problem, tables.loader("validation"))
            assert posterior.calibration is not None
            assert posterior.calibration.chosen_nll is not None
            return posterior, posterior.calibration.chosen_nll

        return run_ramp(job, "laplace", settings.by, settings.percents, fit_subset)


class Swag:
    """The kind `uci-swag`."""

    Settings, Data, ON_PROCESSOR = UciSwagSettings, TableData, True

    @staticmethod
    def run(job: Job) -> Mapping[str, Any]:
        """Collect and calibrate a SWAG posterior for each percentage."""
        settings: UciSwagSettings = job.settings

        def fit_subset(
            problem: Problem, tables: Tables, subset: Subset
        ) -> tuple[SwagPosterior, float]:
            validation = tables.loader("validation")
            posterior = fit.swag(
                problem,
                tables.shuffled(job.seed),
                subset,
                validation=validation,
                settings=settings.settings(),
                seed=job.seed,
            )
            posterior = calibrate(posterior, problem, validation, samples=settings.samples)
            assert posterior.calibration is not None
            return posterior, posterior.calibration.chosen_nll

        return run_ramp(job, "swag", settings.by, settings.percents, fit_subset)
