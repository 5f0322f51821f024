"""The scores that are reported together, each with its interval."""

from __future__ import annotations

from math import sqrt

from torch import Tensor

from smidgen.evaluate.calibration import BINNINGS, bootstrap_calibration_error
from smidgen.evaluate.intervals import Interval, bootstrap_mean
from smidgen.evaluate.scores import (
    brier,
    confidence_and_correct,
    correct,
    covered,
    drop_unlabelled,
    nll,
    squared_error,
)
from smidgen.outputs.predictive import GaussianPredictive, Predictive


def summarise(
    predictive: Predictive, targets: Tensor, *, draws: int = 1000, seed: int = 0
) -> dict[str, Interval]:
    """Score predictions, with 95 % bootstrap intervals.

    Args:
        predictive: Of any kind.
        targets: Class numbers (B,), labels 0 or 1 (B, C), or numbers (B, C). Examples
            labelled −100 are left out.
        draws: How many times to redraw the examples.
        seed: Of the redraws.

    Returns:
        Categorical and Bernoulli: accuracy, nll, brier, ece_equal_mass and
        ece_equal_width (20 bins). Gaussian: nll, rmse and coverage (of 95 % intervals).
    """
    predictive, targets = drop_unlabelled(predictive, targets)

    def mean(values: Tensor) -> Interval:
        return bootstrap_mean(values, draws=draws, seed=seed)

    if isinstance(predictive, GaussianPredictive):
        loss = mean(nll(predictive, targets))
        square = mean(squared_error(predictive, targets))
        rmse = Interval(sqrt(square.value), sqrt(square.low), sqrt(square.high))
        return {"nll": loss, "rmse": rmse, "coverage": mean(covered(predictive, targets))}
    confidence, right = confidence_and_correct("summarise", predictive, targets)
    return {
        "accuracy": mean(correct(predictive, targets)),
        "nll": mean(nll(predictive, targets)),
        "brier": mean(brier(predictive, targets)),
        **{
            "ece_" + binning.replace("-", "_"): bootstrap_calibration_error(
                confidence, right, binning=binning, draws=draws, seed=seed
            )
            for binning in BINNINGS
        },
    }
