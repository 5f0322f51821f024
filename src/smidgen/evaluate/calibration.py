"""Is a prediction right as often as it says? Binned calibration and risk-coverage.

With n examples in bins of summed confidence and summed correctness, the expected
calibration error is Σ_bins |Σ confidence − Σ correct| / n (arXiv:1706.04599, l1, top
label). Binning:

- "equal-mass": near-equal counts by rank of confidence, ties in order of index.
- "equal-width": [k/bins, (k+1)/bins), the last bin with its right end, 1.

Few answers in a bin are seldom right exactly as often as they say, so that the error of a
perfectly calibrated model is above zero too. Its expectation, for the same confidences, is
the *floor*: what chance alone gives.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from smidgen.errors import ArgumentError
from smidgen.evaluate import checks, scores
from smidgen.evaluate.intervals import Interval, percentile_interval, redraw
from smidgen.outputs.chance import expected_gap
from smidgen.outputs.predictive import Predictive

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
class CalibrationError(Interval):
    """A calibration error with its interval, and what chance alone would give."""

    floor: float


@dataclass(frozen=True)
class RiskCoverage:
    """Error rate (risk) among the fraction (coverage) of examples kept, surest first.

    `area` is that under the whole curve; the lists hold at most 200 of its points.
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
    """Compute the top-label l1 calibration error, too large on average in finite samples.

    Args:
        confidence: Probability of each predicted class, (B,), or label, (B, C); or a
            categorical or Bernoulli predictive.
        correct: Whether each is right, as `confidence`; with a predictive, the targets.
        bins: How many bins.
        binning: "equal-mass" or "equal-width".

    Returns:
        The error, in [0, 1].
    """
    if isinstance(confidence, Predictive):
        verb = "expected_calibration_error"
        confidence, correct = scores.confidence_and_correct(verb, confidence, correct)
    confidence, correct = checks.as_confidences(confidence, correct)
    return float(_error(_bin(confidence[None], correct[None], bins, binning)))


def calibration_floor(
    confidence: Predictive | Tensor,
    targets: Tensor | None = None,
    *,
    bins: int = 20,
    binning: str = "equal-mass",
) -> float:
    """Compute the calibration error that a perfectly calibrated model is expected to show.

    Exact, for answers that are right with the probability that they say, each by itself.

    Args:
        confidence: Probability of each predicted class, (B,), or label, (B, C); or a
            categorical or Bernoulli predictive.
        targets: With a predictive, its targets: examples labelled −100 are left out.
        bins: How many bins.
        binning: "equal-mass" or "equal-width".

    Returns:
        The expected error, in [0, 1].
    """
    if isinstance(confidence, Predictive):
        if targets is not None:
            confidence, _ = scores.drop_unlabelled(confidence, targets)
        confidence = scores.confidence_of_answers("calibration_floor", confidence)
    confidence = checks.as_vector("confidence", confidence.flatten())
    index = find_bins(confidence[None], bins, binning)[0]
    gaps = [expected_gap(confidence[index == place]) for place in range(bins)]
    return sum(gaps) / len(confidence)


def bootstrap_calibration_error(
    confidence: Tensor,
    correct: Tensor,
    *,
    bins: int = 20,
    binning: str = "equal-mass",
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> CalibrationError:
    """Compute the calibration error, a bootstrap interval around it, and its floor.

    Redrawing adds noise to each bin and so raises the error: the plain percentiles of a
    well calibrated model lie above its own error. The redraws are therefore shifted so
    that their mean is the error. The interval covers the error that other examples, as
    many, would show, and so what chance adds to it too.

    Args:
        confidence: Probability of each predicted class, (B,), or label, (B, C).
        correct: Whether each is right, as `confidence`. The labels of an example are
            redrawn together.
        bins: How many bins.
        binning: "equal-mass" or "equal-width".
        draws: How many times to redraw the examples.
        level: The fraction of redraws inside the interval.
        seed: Of the redraws.

    Returns:
        The error with its interval, cut at 0, and its floor.
    """
    confidence, correct = checks.as_confidences(confidence, correct)

    def error(rows: Tensor) -> Tensor:
        return _error(_bin(confidence[rows], correct[rows], bins, binning))

    value = float(error(torch.arange(len(confidence))[None]))
    drawn = redraw(error, len(confidence), draws=draws, seed=seed)
    shifted = (drawn - drawn.mean() + value).clamp_min(0)
    interval = percentile_interval(value, shifted, level)
    floor = calibration_floor(confidence, bins=bins, binning=binning)
    return CalibrationError(**interval.to_dict(), floor=floor)


def reliability_curve(
    confidence: Tensor, correct: Tensor, *, bins: int = 20, binning: str = "equal-mass"
) -> ReliabilityCurve:
    """Compute accuracy against confidence, bin by bin from unsure to sure.

    Args:
        confidence: Probability of each predicted class, (B,), or label, (B, C).
        correct: Whether each is right, as `confidence`.
        bins: How many bins.
        binning: "equal-mass" or "equal-width".

    Returns:
        The curve, without empty bins.
    """
    confidence, correct = checks.as_confidences(confidence, correct)
    count, sure, right = (
        total[0] for total in _bin(confidence[None], correct[None], bins, binning)
    )
    filled = count > 0
    return ReliabilityCurve(
        (sure[filled] / count[filled]).tolist(),
        (right[filled] / count[filled]).tolist(),
        count[filled].long().tolist(),
    )


def risk_coverage(confidence: Tensor, correct: Tensor) -> RiskCoverage:
    """Compute the error rate among the examples kept when the least sure are left out.

    Examples of equal confidence enter together. The area is the mean over examples of
    the risk at their confidence (AURC, arXiv:1805.08206).

    Args:
        confidence: How sure each prediction is, (B,): any score, higher is surer.
        correct: Whether each is right, (B,).

    Returns:
        The curve, from few examples to all, with its area; lower is better.
    """
    confidence = checks.as_vector("confidence", confidence)
    correct = checks.as_zero_or_one("correct", correct)
    checks.require_same_length("correct", correct, "confidence", confidence)
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


def find_bins(confidence: Tensor, bins: int, binning: str) -> Tensor:
    """Find the bin of each confidence, row by row, (K, N)."""
    checks.require_at_least_one("bins", bins)
    if binning not in BINNINGS:
        allowed = ", ".join(BINNINGS)
        raise ArgumentError(
            f"binning must be one of {allowed}, got {binning!r}. Choose one."
        )
    if binning == "equal-mass":
        n = confidence.shape[-1]
        order = confidence.argsort(dim=-1, stable=True)
        by_rank = (torch.arange(n) * bins // n).expand_as(order)
        return torch.empty_like(order).scatter(-1, order, by_rank)
    inner = torch.arange(1, bins, dtype=torch.float64) / bins
    return torch.bucketize(confidence, inner, right=True)


def _bin(
    confidence: Tensor, correct: Tensor, bins: int, binning: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum counts, confidence and correctness in each bin of each redraw, (K, bins)."""
    confidence, correct = confidence.flatten(1), correct.flatten(1)
    index = find_bins(confidence, bins, binning)
    empty = confidence.new_zeros(*confidence.shape[:-1], bins)
    count = empty.scatter_add(-1, index, torch.ones_like(confidence))
    sure = empty.scatter_add(-1, index, confidence)
    return count, sure, empty.scatter_add(-1, index, correct)


def _error(binned: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    count, sure, right = binned
    return (sure - right).abs().sum(-1) / count.sum(-1)
