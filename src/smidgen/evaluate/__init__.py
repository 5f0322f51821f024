"""Scores of predictions: functions of (predictive or tensors, targets)."""

from smidgen.evaluate.association import rank_correlation
from smidgen.evaluate.calibration import (
    BINNINGS,
    ReliabilityCurve,
    RiskCoverage,
    bootstrap_calibration_error,
    expected_calibration_error,
    paired_calibration_difference,
    reliability_curve,
    risk_coverage,
)
from smidgen.evaluate.detection import auroc, bootstrap_auroc
from smidgen.evaluate.intervals import (
    Interval,
    bootstrap,
    bootstrap_mean,
    paired_difference,
)
from smidgen.evaluate.scores import brier, correct, covered, nll, squared_error
from smidgen.evaluate.summary import summarise

__all__ = [
    "BINNINGS",
    "Interval",
    "ReliabilityCurve",
    "RiskCoverage",
    "auroc",
    "bootstrap",
    "bootstrap_auroc",
    "bootstrap_calibration_error",
    "bootstrap_mean",
    "brier",
    "correct",
    "covered",
    "expected_calibration_error",
    "nll",
    "paired_calibration_difference",
    "paired_difference",
    "rank_correlation",
    "reliability_curve",
    "risk_coverage",
    "squared_error",
    "summarise",
]
