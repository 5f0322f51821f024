"""The three ways to predict with the same layers: exact, through few directions, isotropic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import smidgen
from bench.measuring import Tokens
from bench.models.sentiment_minilm import FinetunedMiniLM

Way = Literal["exact", "low-rank", "isotropic"]
WAYS: tuple[Way, ...] = ("exact", "low-rank", "isotropic")
TOLERANCE = 0.01


def calibrated_posteriors(
    minilm: FinetunedMiniLM, percent: float
) -> dict[Way, smidgen.LaplacePosterior]:
    """Fit and calibrate Sparse-KFAC of a percentage; low-rank is exact's, read otherwise."""
    problem = minilm.problem
    subset = smidgen.select.sparse_kfac(minilm.model, percent=percent)
    fitted = smidgen.fit.laplace(problem, minilm.train, subset, progress=False)
    plain = smidgen.fit.isotropic(problem, subset)
    exact, isotropic = (
        smidgen.calibrate(each, problem, minilm.validation, progress=False)
        for each in (fitted, plain)
    )
    return {"exact": exact, "low-rank": exact, "isotropic": isotropic}


def predict_by(
    way: Way,
    posterior: smidgen.LaplacePosterior,
    problem: smidgen.Problem,
    batches: Sequence[Tokens],
) -> Callable[[], smidgen.Predictive]:
    """A prediction of all batches in one of the ways."""
    tolerance = TOLERANCE if way == "low-rank" else None
    return lambda: smidgen.predict_batches(
        posterior, problem, batches, tolerance=tolerance, progress=False
    )
