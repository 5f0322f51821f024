"""Is one prediction better calibrated than another? The squared error, without bias.

What chance adds to a sample's calibration error (`evaluate.calibration`) depends on the
model: it adds most where the true gap is smallest. So it does not cancel in a difference of
two errors, and no estimate of an absolute value is free of it: whatever the estimate, its
expectation is smooth in the true gap, and |gap| is not, at zero.

The square of a gap has an exact estimate. With r = correct − confidence, the product of the
r of two different examples has the product of their true gaps for its expectation, whatever
their noise. So the mean over bins, by their counts, of the mean of r_i r_j over all pairs
of different examples i ≠ j in a bin has the mean squared gap for its expectation (compare
the debiased estimator of arXiv:1909.10155). It may be below zero by chance. Labels of one
example are never paired.

A difference of two is a sum T = Σ_{i≠j} h_ij over pairs, so that its variance is known
too: 4 Σ (L_i − mean L)² − 2 Σ h_ij² with L_i = Σ_j h_ij, the second term for what the noise
of L_i adds (Hoeffding's decomposition). The variance of a T without any linear part is
2 Σ h_ij²; half of that is the least that is believed. Over- and underconfident, equal and
calibrated pairs, 100 to 2,000 rows: 94 to 97 % of the 95 % intervals held the truth.
"""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

import torch
from torch import Tensor

from smidgen.errors import DataError
from smidgen.evaluate import checks, scores
from smidgen.evaluate.calibration import find_bins
from smidgen.evaluate.intervals import Interval
from smidgen.outputs.predictive import Predictive


def squared_calibration_error(
    confidence: Predictive | Tensor,
    correct: Tensor,
    *,
    bins: int = 20,
    binning: str = "equal-mass",
    level: float = 0.95,
) -> Interval:
    """Estimate the mean squared gap of confidence and accuracy, without bias.

    Args:
        confidence: Probability of each predicted class, (B,), or label, (B, C); or a
            categorical or Bernoulli predictive.
        correct: Whether each is right, as `confidence`; with a predictive, the targets.
        bins: How many bins; at most half as many as there are answers are used.
        binning: "equal-mass" or "equal-width".
        level: The probability of the interval.

    Returns:
        The estimate, which may be below zero by chance, with its interval.
    """
    if isinstance(confidence, Predictive):
        verb = "squared_calibration_error"
        confidence, correct = scores.confidence_and_correct(verb, confidence, correct)
    side = checks.as_confidences(confidence, correct)
    return _estimate([_sum_residuals(*side, bins, binning)], level)


def paired_calibration_difference(
    first: Predictive,
    second: Predictive,
    targets: Tensor,
    *,
    bins: int = 20,
    binning: str = "equal-mass",
    level: float = 0.95,
) -> Interval:
    """Estimate the difference of two squared calibration errors on the *same* examples.

    An interval that excludes 0 says that one is better calibrated than the other by more
    than the choice of examples explains.

    Args:
        first: One prediction, categorical or Bernoulli.
        second: The other, of the same examples; its error is subtracted.
        targets: Their classes, (B,), or labels, (B, C).
        bins: How many bins; at most half as many as there are answers are used.
        binning: "equal-mass" or "equal-width".
        level: The probability of the interval.

    Returns:
        The difference of the squared errors with its interval.
    """
    verb = "paired_calibration_difference"
    sides = []
    for predictive in (first, second):
        answers = scores.confidence_and_correct(verb, predictive, targets)
        sides.append(_sum_residuals(*checks.as_confidences(*answers), bins, binning))
    return _estimate(sides, level)


def _sum_residuals(
    confidence: Tensor, correct: Tensor, bins: int, binning: str
) -> tuple[Tensor, Tensor]:
    """Sum correct − confidence by example and bin, (B, bins), and weigh a pair of a bin."""
    examples = len(confidence)
    residuals = (correct - confidence).reshape(examples, -1)
    if examples < 2:
        raise DataError(
            f"targets must be of two examples or more, got {examples}. Pass more test data."
        )
    checks.require_at_least_one("bins", bins)
    bins = min(bins, residuals.numel() // 2)
    index = find_bins(confidence.reshape(1, -1), bins, binning).reshape(examples, -1)
    empty = residuals.new_zeros(examples, bins)
    sums = empty.scatter_add(1, index, residuals)
    counts = empty.scatter_add(1, index, torch.ones_like(residuals))
    pairs = counts.sum(0).square() - counts.square().sum(0)
    # A bin without a pair tells nothing; the others stand for it.
    weights = counts.sum(0).where(pairs > 0, 0)
    weights = weights / weights.sum().clamp_min(1) / pairs.clamp_min(1)
    return sums, weights


def _estimate(sides: list[tuple[Tensor, Tensor]], level: float) -> Interval:
    """Estimate the first squared error, less the second if there is one."""
    checks.require_fraction("level", level)
    sums = torch.cat([side for side, _ in sides], 1)  # (B, K), K bins of both sides
    signs = (1.0, -1.0)
    weights = torch.cat(
        [sign * own for sign, (_, own) in zip(signs, sides, strict=False)]
    )  # (K,)
    total, squares = sums.sum(0), sums.square()
    value = float(weights @ (total.square() - squares.sum(0)))
    linear = (sums * (total - sums)) @ weights  # L, (B,)
    products = (sums.T @ sums).square() - squares.T @ squares
    pairs = float(weights @ products @ weights)  # Σ h²
    variance = 4 * float((linear - linear.mean()).square().sum()) - 2 * pairs
    half = NormalDist().inv_cdf((1 + level) / 2) * sqrt(max(variance, pairs, 0.0))
    return Interval(value, value - half, value + half)
