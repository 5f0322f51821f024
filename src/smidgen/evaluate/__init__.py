"""Scores of predictions: functions of (predictive or tensors, targets)."""

from smidgen.evaluate.association import paired_rank_difference, rank_correlation
from smidgen.evaluate.calibration import (
    BINNINGS,
    CalibrationError,
    ReliabilityCurve,
    RiskCoverage,
    bootstrap_calibration_error,
    calibration_floor,
    expected_calibration_error,
    reliability_curve,
    risk_coverage,
)
from smidgen.evaluate.detection import (
    auroc,
    auroc_interval,
    bootstrap_auroc,
    paired_auroc_difference,
)
from smidgen.evaluate.intervals import (
    Interval,
    bootstrap,
    bootstrap_mean,
    paired_difference,
)
from smidgen.evaluate.scores import brier, correct, covered, nll, squared_error
from smidgen.evaluate.selective import (
    answered_error,
    automation_rate,
    interval_coverage,
    interval_width,
    paired_area_difference,
    paired_automation_difference,
    set_coverage,
    set_size,
)
from smidgen.evaluate.squared_calibration import (
    paired_calibration_difference,
    squared_calibration_error,
)
from smidgen.evaluate.summary import summarise

__all__ = [
    "BINNINGS",
    "CalibrationError",
    "Interval",
    "ReliabilityCurve",
    "RiskCoverage",
    "answered_error",
    "auroc",
    "auroc_interval",
    "automation_rate",
    "bootstrap",
    "bootstrap_auroc",
    "bootstrap_calibration_error",
    "bootstrap_mean",
    "brier",
    "calibration_floor",
    "correct",
    "covered",
    "expected_calibration_error",
    "interval_coverage",
    "interval_width",
    "nll",
    "paired_area_difference",
    "paired_auroc_difference",
    "paired_automation_difference",
    "paired_calibration_difference",
    "paired_difference",
    "paired_rank_difference",
    "rank_correlation",
    "reliability_curve",
    "risk_coverage",
    "set_coverage",
    "set_size",
    "squared_calibration_error",
    "squared_error",
    "summarise",
]
