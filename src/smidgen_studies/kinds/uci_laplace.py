"""Laplace with the whole GGN of a percentage of a regression's weights.

Prior precision and noise are chosen together on validation data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from smidgen import fit
from smidgen.fit.calibration.calibrate import calibrate
from smidgen.outputs.problem import Problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.weights.subset import Subset
from smidgen_studies.data.uci import TableData, Tables
from smidgen_studies.engine.cell import Job, read_settings
from smidgen_studies.engine.settings import Percents
from smidgen_studies.methods.uci_choices import By
from smidgen_studies.methods.uci_ramp import PERCENTS, names_of, ramped

Data = TableData
ON_PROCESSOR = True


@dataclass(frozen=True)
class Settings:
    """Which weights, and how many."""

    by: By
    percents: Percents = PERCENTS
    structure: Literal["full", "diag", "kron", "ekfac"] = "full"

    @property
    def reported_methods(self) -> tuple[str, ...]:
        """Names of the methods that its record has."""
        return (names_of("laplace", self.by, self.percents)[0],)


def run(job: Job) -> Mapping[str, Any]:
    """Fit and tune a posterior for each percentage."""
    told = read_settings(Settings, job.settings, "uci-laplace")

    def fitted(
        problem: Problem, tables: Tables, subset: Subset
    ) -> tuple[LaplacePosterior, float]:
        found = fit.laplace(
            problem, tables.loader("train"), subset, structure=told.structure
        )
        found = calibrate(found, problem, tables.loader("validation"))
        assert found.calibration is not None
        assert found.calibration.chosen_nll is not None
        return found, found.calibration.chosen_nll

    return ramped(job, "laplace", told.by, told.percents, fitted)
