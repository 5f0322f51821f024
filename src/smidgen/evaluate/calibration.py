"""Is a confidence the chance of being right? Binned calibration and risk-coverage.

With n examples in bins of summed confidence and summed correctness, the expected
calibration error is Σ_bins |Σ confidence − Σ correct| / n (arXiv:1706.04599, l1, top
label). Binning:

- "equal-mass": near-equal counts by rank of confidence, ties in order of index.
- "equal-width": [k/bins, (k+1)/bins), the last bin with its right end, 1.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from smidgen.evaluate import checks, scores
from smidgen.evaluate.intervals import Interval, percentiles, redraw
from smidgen.outputs.predictive import CategoricalPredictive, Predictive

BINNINGS = ("equal-mass", "equal-width")
_POINTS = 200


@dataclass(frozen=True)
class ReliabilityCurve:
    """Mean confidence, accuracy and count of each bin that holds an example."""

    confidence: list[float]
    accuracy: list[float]
    count: list[int]

    def to_dict(self) -> dict[str, list[Any]]:
        """Give the three lists by name, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class RiskCoverage:
    """Error rate (risk) of the share (coverage) of examples kept, surest first.

    `area` is of the whole curve; the lists hold at most 200 of its points.
    """

    coverage: list[float]
    risk: list[float]
    area: float

    def to_dict(self) -> dict[str, Any]:
        """Give both lists and the area by name, ready for JSON."""
        return asdict(self)


def expected_calibration_error(
    confidence: Predictive | Tensor,
    correct: Tensor,
    *,
    bins: int = 20,
    binning: str = "equal-mass",
) -> float:
    """Top-label l1 calibration error. A finite sample makes it too large, on average.

    Args:
        confidence: Probability of each predicted class, (B,); or a categorical
            predictive.
        correct: Whether each is right, (B,); with a predictive, the targets.
        bins: How many bins.
        binning: "equal-mass" or "equal-width".

    Returns:
        The error, in [0, 1].
    """
    if isinstance(confidence, Predictive):
        predictive = scores.categorical("expected_calibration_error", confidence)
        predictive, correct = scores.with_targets(predictive, correct)
        correct = scores.correct(predictive, correct)
        confidence = predictive.confidence
    confidence, correct = checks.confidences(confidence, correct)
    return float(_error(_binned(confidence, correct, bins, binning)))


def bootstrap_calibration_error(
    confidence: Tensor,
    correct: Tensor,
    *,
    bins: int = 20,
    binning: str = "equal-mass",
    draws: int = 1000,
    level: float = 0.95,
    generator: torch.Generator | None = None,
) -> Interval:
    """Calibration error with a bootstrap interval around it.

    Redrawing adds noise to each bin and so raises the error: the plain percentiles of a
    well calibrated model lie above its own error. The redraws are therefore shifted to
    have the error as their mean.

    Args:
        confidence: Probability of each predicted class, (B,).
        correct: Whether each is right, (B,).
        bins: How many bins.
        binning: "equal-mass" or "equal-width".
        draws: How many times the examples are redrawn.
        level: The share of redraws inside the interval.
        generator: Source of the redraws.

    Returns:
        The error with its interval, cut at 0.
    """
    confidence, correct = checks.confidences(confidence, correct)
    value = float(_error(_binned(confidence, correct, bins, binning)))
    drawn = redraw(
        lambda rows: _error(_binned(confidence[rows], correct[rows], bins, binning)),
        len(confidence),
        draws=draws,
        generator=generator,
    )
    shifted = (drawn - drawn.mean() + value).clamp_min(0)
    return percentiles(value, shifted, level)


def paired_calibration_difference(
    first: CategoricalPredictive,
    second: CategoricalPredictive,
    targets: Tensor,
    *,
    bins: int = 20,
    binning: str = "equal-mass",
    draws: int = 1000,
    level: float = 0.95,
    generator: torch.Generator | None = None,
) -> Interval:
    """Difference of two calibration errors on the *same* examples, first less second.

    Redraws are shifted as in `bootstrap_calibration_error`.

    Args:
        first: One prediction.
        second: The other, of the same examples.
        targets: Their classes, (B,).
        bins: How many bins.
        binning: "equal-mass" or "equal-width".
        draws: How many times the examples are redrawn.
        level: The share of redraws inside the interval.
        generator: Source of the redraws.

    Returns:
        The difference with its interval.
    """
    sides = [
        checks.confidences(each.confidence, scores.correct(each, wanted))
        for each, wanted in (scores.with_targets(p, targets) for p in (first, second))
    ]
    count = len(sides[0][0])

    def gap(rows: Tensor) -> Tensor:
        ours, theirs = (
            _error(_binned(confidence[rows], right[rows], bins, binning))
            for confidence, right in sides
        )
        return ours - theirs

    value = float(gap(torch.arange(count)))
    drawn = redraw(gap, count, draws=draws, generator=generator)
    return percentiles(value, drawn - drawn.mean() + value, level)


def reliability_curve(
    confidence: Tensor,
    correct: Tensor,
    *,
    bins: int = 20,
    binning: str = "equal-mass",
) -> ReliabilityCurve:
    """Accuracy against confidence, bin by bin from unsure to sure.

    Args:
        confidence: Probability of each predicted class, (B,).
        correct: Whether each is right, (B,).
        bins: How many bins.
        binning: "equal-mass" or "equal-width".

    Returns:
        The curve, without empty bins.
    """
    confidence, correct = checks.confidences(confidence, correct)
    count, sure, right = _binned(confidence, correct, bins, binning)
    kept = count > 0
    return ReliabilityCurve(
        (sure[kept] / count[kept]).tolist(),
        (right[kept] / count[kept]).tolist(),
        count[kept].long().tolist(),
    )


def risk_coverage(confidence: Tensor, correct: Tensor) -> RiskCoverage:
    """Error rate among the examples kept when the least sure are left out.

    Examples of equal confidence enter together. The area is the mean over examples of
    the risk at their own confidence (AURC, arXiv:1805.08206).

    Args:
        confidence: How sure each prediction is, (B,): any score, higher is surer.
        correct: Whether each is right, (B,).

    Returns:
        The curve, from few examples to all, with its area; lower is better.
    """
    confidence = checks.vector("confidence", confidence)
    correct = checks.zero_or_one("correct", correct)
    checks.same_length("correct", correct, "confidence", confidence)
    confidence, order = confidence.sort(descending=True)
    wrong = (1 - correct[order]).cumsum(0)
    is_last = torch.ones(len(order), dtype=torch.bool)
    is_last[:-1] = confidence[1:] != confidence[:-1]
    ends = is_last.nonzero().squeeze(-1)
    coverage = (ends + 1).double() / len(order)
    risk = wrong[ends] / (ends + 1)
    area = risk @ coverage.diff(prepend=coverage.new_zeros(1))
    points = min(_POINTS, len(ends))
    shown = torch.linspace(0, len(ends) - 1, points, dtype=torch.float64).round().long()
    return RiskCoverage(coverage[shown].tolist(), risk[shown].tolist(), float(area))


def _binned(
    confidence: Tensor, correct: Tensor, bins: int, binning: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Count, summed confidence and summed correctness of each bin, (..., bins)."""
    checks.at_least_one("bins", bins)
    checks.one_of("binning", binning, BINNINGS)
    if binning == "equal-mass":
        n = confidence.shape[-1]
        order = confidence.argsort(dim=-1, stable=True)
        by_rank = (torch.arange(n) * bins // n).expand_as(order)
        places = torch.empty_like(order).scatter(-1, order, by_rank)
    else:
        inner = torch.arange(1, bins, dtype=torch.float64) / bins
        places = torch.bucketize(confidence, inner, right=True)
    empty = confidence.new_zeros(*confidence.shape[:-1], bins)
    count = empty.scatter_add(-1, places, torch.ones_like(confidence))
    sure = empty.scatter_add(-1, places, confidence)
    return count, sure, empty.scatter_add(-1, places, correct)


def _error(binned: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    count, sure, right = binned
    return (sure - right).abs().sum(-1) / count.sum(-1)
