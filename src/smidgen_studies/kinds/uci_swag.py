"""SWAG on a percentage of a regression's weights, its noise chosen on validation data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smidgen import fit
from smidgen.fit.calibration.calibrate import calibrate
from smidgen.fit.swag import SwagOptions
from smidgen.outputs.problem import Problem
from smidgen.posterior.swag import SwagPosterior
from smidgen.weights.subset import Subset
from smidgen_studies.data.uci import TableData, Tables
from smidgen_studies.engine.cell import Job, read_settings
from smidgen_studies.engine.settings import Percents, Rates
from smidgen_studies.methods.uci_choices import By
from smidgen_studies.methods.uci_ramp import PERCENTS, names_of, ramped

Data = TableData
ON_PROCESSOR = True


@dataclass(frozen=True, kw_only=True)
class Settings(SwagOptions):
    """Which weights, how many, and how they are collected."""

    by: By
    percents: Percents = PERCENTS
    rates: Rates | None = (1e-4, 1e-3, 1e-2, 5e-2)
    steps: int = 800
    every: int = 2
    trial_steps: int = 200
    samples: int = 64

    @property
    def reported_methods(self) -> tuple[str, ...]:
        """Names of the methods that its record has."""
        return (names_of("swag", self.by, self.percents)[0],)


def run(job: Job) -> Mapping[str, Any]:
    """Collect and tune a posterior for each percentage."""
    told = read_settings(Settings, job.settings, "uci-swag")

    def fitted(
        problem: Problem, tables: Tables, subset: Subset
    ) -> tuple[SwagPosterior, float]:
        validation = tables.loader("validation")
        found = fit.swag(
            problem,
            tables.shuffled(job.seed),
            subset,
            validation=validation,
            **told.arguments(),
            seed=job.seed,
        )
        found = calibrate(found, problem, validation, samples=told.samples)
        assert found.calibration is not None
        return found, found.calibration.chosen_nll

    return ramped(job, "swag", told.by, told.percents, fitted)
