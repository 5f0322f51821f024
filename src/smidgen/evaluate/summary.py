"""The scores one reports together, each with its interval."""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from smidgen.evaluate.calibration import BINNINGS, bootstrap_calibration_error
from smidgen.evaluate.intervals import Interval, bootstrap_mean
from smidgen.evaluate.scores import brier, correct, nll, squared_error, with_targets
from smidgen.outputs.predictive import (
    CategoricalPredictive,
    GaussianPredictive,
    Predictive,
)


def summarise(
    predictive: Predictive,
    targets: Tensor,
    *,
    draws: int = 1000,
    generator: torch.Generator | None = None,
) -> dict[str, Interval]:
    """Score predictions, with 95 % bootstrap intervals.

    Args:
        predictive: Of any kind.
        targets: Class numbers (B,), labels 0 or 1 (B, C), or numbers (B, C). Examples
            labelled −100 are left out.
        draws: How many times the examples are redrawn.
        generator: Source of the redraws.

    Returns:
        Categorical: accuracy, nll, brier, ece_equal_mass and ece_equal_width (20 bins).
        Bernoulli: nll and brier. Gaussian: nll and rmse.
    """
    predictive, targets = with_targets(predictive, targets)

    def mean(values: Tensor) -> Interval:
        return bootstrap_mean(values, draws=draws, generator=generator)

    loss = mean(nll(predictive, targets))
    if isinstance(predictive, GaussianPredictive):
        squared = mean(squared_error(predictive, targets))
        roots = (sqrt(each) for each in (squared.value, squared.low, squared.high))
        return {"nll": loss, "rmse": Interval(*roots)}
    if not isinstance(predictive, CategoricalPredictive):
        return {"nll": loss, "brier": mean(brier(predictive, targets))}
    right = correct(predictive, targets)
    found = {
        "accuracy": mean(right),
        "nll": loss,
        "brier": mean(brier(predictive, targets)),
    }
    for binning in BINNINGS:
        found["ece_" + binning.replace("-", "_")] = bootstrap_calibration_error(
            predictive.confidence,
            right,
            binning=binning,
            draws=draws,
            generator=generator,
        )
    return found
