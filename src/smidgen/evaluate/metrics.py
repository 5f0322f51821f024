"""The scores of this room as metrics of torchmetrics, for loops that have one already.

    nll = NllMetric()
    for batch in test_loader:
        nll.update(smidgen.predict(posterior, model, batch), batch["labels"])
    nll.compute()

Every metric keeps what it needs of each row, in fp64, so that `compute` gives what the function
of this room gives for all rows at once; states of several processes are joined. Imported by
whoever asks for it: torchmetrics need not be installed for anything else.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from smidgen.errors import ArgumentError
from smidgen.evaluate import checks, scores, selective
from smidgen.evaluate.calibration import (
    calibration_floor,
    expected_calibration_error,
    find_bins,
    risk_coverage,
)
from smidgen.outputs.predictive import (
    GaussianPredictive,
    Predictive,
)


class MakesIntervals(Protocol):
    """What finds an interval for each output, as an `IntervalRule` of `smidgen.decide` does."""

    def apply(self, predictive: Predictive) -> tuple[Tensor, Tensor]:
        """Find the lower and the upper ends, (B, C) each."""
        ...


class _RowMetric(Metric):  # type: ignore[misc]
    """Keeps a vector for each row, batch after batch."""

    higher_is_better: bool | None
    is_differentiable = False
    full_state_update = False
    rows: Any

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.add_state("rows", default=[], dist_reduce_fx="cat")

    def update(self, predictive: Predictive, targets: Tensor) -> None:
        """Take a batch.

        Args:
            predictive: Of the batch, as `smidgen.predict` returns it.
            targets: Its targets. Examples labelled −100 are left out.
        """
        self.rows.append(self.score(predictive, targets).double().to(self.device))

    @abstractmethod
    def score(self, predictive: Predictive, targets: Tensor) -> Tensor:
        """Compute what is kept of a batch, (B, ...)."""

    def compute(self) -> Tensor:
        """Compute the mean over rows, a tensor without axes in fp64."""
        return self.join_rows().mean()

    def join_rows(self) -> Tensor:
        """Join what was kept of all rows, on the CPU, (N, ...)."""
        if not len(self.rows):
            raise ArgumentError(
                f"{type(self).__name__} must have a row, got none. Call update first."
            )
        return dim_zero_cat(self.rows).cpu()


class NllMetric(_RowMetric):
    """Mean of `smidgen.evaluate.nll`."""

    higher_is_better = False

    def score(self, predictive: Predictive, targets: Tensor) -> Tensor:
        """Compute the negative log-likelihood of each target, (B,)."""
        return scores.nll(predictive, targets)


class BrierMetric(_RowMetric):
    """Mean of `smidgen.evaluate.brier`."""

    higher_is_better = False

    def score(self, predictive: Predictive, targets: Tensor) -> Tensor:
        """Compute the Brier score of each row, (B,)."""
        return scores.brier(predictive, targets)


class _AnswerMetric(_RowMetric):
    """Keeps the confidence of each answer and whether it is right, (A, 2)."""

    def score(self, predictive: Predictive, targets: Tensor) -> Tensor:
        """Compute confidence and correctness of each answer: of each row, or each label."""
        verb = type(self).__name__
        confidence, right = scores.confidence_and_correct(verb, predictive, targets)
        return torch.stack([confidence.double(), right], -1).flatten(0, -2)

    def split_answers(self) -> tuple[Tensor, Tensor]:
        """Confidence of all answers, and whether each is right, (A,) each."""
        confidence, right = self.join_rows().T.contiguous()
        return confidence, right


class EceMetric(_AnswerMetric):
    """`smidgen.evaluate.expected_calibration_error`; beside it belongs `EceFloorMetric`.

    Args:
        bins: How many bins.
        binning: "equal-mass" or "equal-width".
        **settings: Of every metric of torchmetrics.
    """

    higher_is_better: bool | None = False

    def __init__(
        self, bins: int = 20, binning: str = "equal-mass", **settings: Any
    ) -> None:
        super().__init__(**settings)
        # Refused now, and not after all batches.
        find_bins(torch.zeros(1, 1, dtype=torch.float64), bins, binning)
        self.bins, self.binning = bins, binning

    def compute(self) -> Tensor:
        """Compute the calibration error of all answers."""
        confidence, right = self.split_answers()
        return _as_scalar(
            expected_calibration_error(
                confidence, right, bins=self.bins, binning=self.binning
            )
        )


class EceFloorMetric(EceMetric):
    """`smidgen.evaluate.calibration_floor`: the error that chance alone gives."""

    higher_is_better: bool | None = None

    def compute(self) -> Tensor:
        """Compute the error that a perfectly calibrated model is expected to show."""
        confidence, _ = self.split_answers()
        return _as_scalar(
            calibration_floor(confidence, bins=self.bins, binning=self.binning)
        )


class AurcMetric(_AnswerMetric):
    """Area of `smidgen.evaluate.risk_coverage`: the risk, whatever fraction is answered."""

    higher_is_better = False

    def compute(self) -> Tensor:
        """Compute the area under the risk–coverage curve of all answers."""
        confidence, right = self.split_answers()
        return _as_scalar(risk_coverage(confidence, right).area)


class AutomationRateMetric(_AnswerMetric):
    """`smidgen.evaluate.automation_rate`: the fraction that can be answered at an error rate.

    Args:
        max_error: The largest error rate among the answers.
        **settings: Of every metric of torchmetrics.
    """

    higher_is_better = True

    def __init__(self, max_error: float = 0.05, **settings: Any) -> None:
        super().__init__(**settings)
        checks.require_fraction("max_error", max_error)
        self.max_error = max_error

    def compute(self) -> Tensor:
        """Compute the largest such fraction of all answers."""
        confidence, right = self.split_answers()
        return _as_scalar(
            selective.find_automation_rate(confidence, right, max_error=self.max_error)
        )


class _IntervalMetric(_RowMetric):
    """Intervals of a rule, or the central ones of the predicted normal distributions.

    Args:
        rule: Finds the intervals; by default they are the central ones.
        level: The probability of a central interval.
        **settings: Of every metric of torchmetrics.
    """

    def __init__(
        self, rule: MakesIntervals | None = None, *, level: float = 0.95, **settings: Any
    ) -> None:
        super().__init__(**settings)
        checks.require_fraction("level", level)
        self.rule, self.level = rule, level

    def find_ends(self, predictive: Predictive) -> tuple[Tensor, Tensor]:
        """Find the lower and the upper ends, (B, C) each."""
        if self.rule is not None:
            return self.rule.apply(predictive)
        if not isinstance(predictive, GaussianPredictive):
            raise ArgumentError(
                f"predictive must be gaussian for {type(self).__name__}, got "
                f"{getattr(predictive, 'kind', type(predictive).__name__)}. Use NllMetric "
                "instead."
            )
        return predictive.central_interval(self.level)


class CoverageMetric(_IntervalMetric):
    """How often intervals hold their targets: with a rule as `interval_coverage` says.

    Without, it is the mean of `smidgen.evaluate.covered`, which should be `level`.
    """

    higher_is_better = None

    def score(self, predictive: Predictive, targets: Tensor) -> Tensor:
        """Compute the fraction of outputs of each row whose interval holds its target, (B,)."""
        if self.rule is None:
            return scores.covered(predictive, targets, level=self.level)
        low, high = self.find_ends(predictive)
        numbers = checks.as_outputs_shape(targets, low)
        return ((low <= numbers) & (numbers <= high)).double().mean(-1)


class WidthMetric(_IntervalMetric):
    """How wide intervals are on average, as `smidgen.evaluate.interval_width` says."""

    higher_is_better = False

    def score(self, predictive: Predictive, targets: Tensor) -> Tensor:
        """Compute the mean width of each row's intervals, (B,); targets are not used."""
        low, high = self.find_ends(predictive)
        return (high - low).mean(-1)


def _as_scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
