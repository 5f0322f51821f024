"""`intervals` and `quantiles`: where a number lies, with the coverage that was asked for.

Split-conformal: with the residual r = |y − mean| / s of each row, s = √(variance + noise) or 1,
and q the conformal quantile of r (`calibration_rows.conformal_quantile`), the interval
mean ± q · s of a new row holds its target with a probability of at least `coverage`, also where
the variance is wrong; a good variance makes the intervals narrow where the model knows. Several
outputs have a q each, and the coverage is that of each output, not of all at once. A quantile is
one-sided: q is the quantile of (y − mean) / s. From level 0.5 on its rank is rounded up, and y is
at most mean + q · s with a probability of at least the level; below 0.5 it is rounded down, and
y is smaller than mean + q · s with a probability of at most the level. So two quantiles, one on
each side, hold y between them with at least the probability between their levels. If no two
residuals are equal, each misses its level by less than 1/(n + 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from smidgen.decide.calibration_rows import (
    as_written,
    conformal_quantile,
    read_numbers,
    require_gaussian,
    require_known,
    require_open_fraction,
)
from smidgen.decide.rule import DecisionRule, as_percent
from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.predictive import GaussianPredictive, Predictive

_MIDDLE = 0.5


@dataclass(frozen=True, kw_only=True)
class IntervalRule(DecisionRule):
    """Intervals mean ± `factors` · s, one factor for each output; s is 1 unless `scaled`.

    `mean_widths` are those of the rows that made the rule, one for each output.
    """

    name: ClassVar[str] = "intervals"
    coverage: float
    scaled: bool
    factors: tuple[float, ...]
    mean_widths: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.factors or len(self.factors) != len(self.mean_widths):
            raise ArgumentError(
                f"factors must be one for each output, got {len(self.factors)} for "
                f"{len(self.mean_widths)}. Make the rule again."
            )

    def apply(self, predictive: Predictive) -> tuple[Tensor, Tensor]:
        """Find the interval of each output of each row.

        Args:
            predictive: Of new rows, made as those were that made the rule.

        Returns:
            The lower and the upper ends, each (B, C).
        """
        gaussian = _require_outputs(predictive, len(self.factors), "intervals")
        half = _scale(gaussian, self.scaled) * torch.tensor(
            self.factors, dtype=torch.float64
        )
        mean = gaussian.mean.double()
        return mean - half, mean + half

    def __str__(self) -> str:
        each = " of each output" if len(self.factors) > 1 else ""
        how = "scaled by the predicted deviation" if self.scaled else "of one width"
        widths = ", ".join(f"{width:.4g}" for width in self.mean_widths)
        return (
            f"Intervals{each} hold the target with a probability of at least "
            f"{as_percent(self.coverage)}. They are {how}; of {self._about_rows()} they are "
            f"{widths} wide on average."
        )


@dataclass(frozen=True, kw_only=True)
class QuantileRule(DecisionRule):
    """Quantiles mean + factor · s: `factors` has those of each level, one for each output.

    `Rules` neither hold nor save it; `to_json` and `from_json` keep it elsewhere.
    """

    name: ClassVar[str] = "quantiles"
    levels: tuple[float, ...]
    scaled: bool
    factors: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = {len(factors) for factors in self.factors}
        if len(self.factors) != len(self.levels) or len(sizes) != 1 or 0 in sizes:
            raise ArgumentError(
                "factors must be one for each level and output, got "
                f"{len(self.factors)} for {len(self.levels)} levels. Make the rule again."
            )

    def apply(self, predictive: Predictive) -> Tensor:
        """Find the quantiles of each output of each row.

        Args:
            predictive: Of new rows, made as those were that made the rule.

        Returns:
            The quantiles, (B, C, levels).
        """
        gaussian = _require_outputs(predictive, len(self.factors[0]), "quantiles")
        factors = torch.tensor(self.factors, dtype=torch.float64).T  # (C, levels)
        scale = _scale(gaussian, self.scaled)
        return gaussian.mean.double()[..., None] + scale[..., None] * factors

    def __str__(self) -> str:
        levels = ", ".join(as_percent(level) for level in self.levels)
        below = ""
        if min(self.levels) < _MIDDLE:
            below = ", or, at levels below 50 %, smaller with at most that"
        return (
            f"Quantiles {levels}: the target is at most as large with at least that "
            f"probability{below}; made from {self._about_rows()}."
        )


def intervals(
    predictive: Predictive,
    targets: Tensor,
    *,
    coverage: float = 0.95,
    scaled: bool = True,
) -> IntervalRule:
    """Find how wide intervals must be to hold their targets.

    Args:
        predictive: Gaussian, of rows that chose nothing else.
        targets: Their numbers, (B, C), or (B,) for one output.
        coverage: The probability that an interval holds its target, in (0, 1).
        scaled: Let widths follow the predicted deviation; else all are equally wide.

    Returns:
        The rule. Print it for what it promises and how wide the intervals are.
    """
    require_open_fraction("coverage", coverage, 0.95)
    gaussian, numbers = read_numbers("intervals", predictive, targets)
    scale = _scale(gaussian, scaled)
    residuals = (numbers - gaussian.mean.double()).abs() / scale
    factors = _quantile(residuals, coverage, "coverage")
    return IntervalRule(
        rows=len(numbers),
        coverage=coverage,
        scaled=scaled,
        factors=tuple(factors.tolist()),
        mean_widths=tuple((2 * factors * scale.mean(0)).tolist()),
    )


def quantiles(
    predictive: Predictive,
    targets: Tensor,
    *,
    levels: Sequence[float] = (0.05, 0.5, 0.95),
    scaled: bool = True,
) -> QuantileRule:
    """Find quantiles: each target is at most as large, with the probability of the level.

    Levels below 0.5 are rounded down and others up, so that a pair such as (0.05, 0.95)
    holds at least 90 % of new targets.

    Args:
        predictive: Gaussian, of rows that chose nothing else.
        targets: Their numbers, (B, C), or (B,) for one output.
        levels: The probabilities, each in (0, 1).
        scaled: Let them follow the predicted deviation; else all keep one distance to the mean.

    Returns:
        The rule.

    Raises:
        ArgumentError: If there is no level.
    """
    if not len(levels):
        raise ArgumentError("levels must be one or more, got none. Pass (0.05, 0.95).")
    for level in levels:
        require_open_fraction("levels", level, 0.95)
    gaussian, numbers = read_numbers("quantiles", predictive, targets)
    residuals = (numbers - gaussian.mean.double()) / _scale(gaussian, scaled)
    # The lower ends are upper ends of the negative residuals.
    factors = [
        _quantile(residuals, level, "the level")
        if level >= _MIDDLE
        else -conformal_quantile(
            -residuals, 1 - as_written(level), "labelled rows", f"the level {level:g}"
        )
        for level in levels
    ]
    return QuantileRule(
        rows=len(numbers),
        levels=tuple(float(level) for level in levels),
        scaled=scaled,
        factors=tuple(tuple(factor.tolist()) for factor in factors),
    )


def _quantile(residuals: Tensor, level: float, name: str) -> Tensor:
    asked = f"{name}={level:g}" if name == "coverage" else f"{name} {level:g}"
    return conformal_quantile(residuals, as_written(level), "labelled rows", asked)


def _scale(predictive: GaussianPredictive, scaled: bool) -> Tensor:
    """What residuals are divided by, (B, C)."""
    if not scaled:
        return torch.ones_like(predictive.mean, dtype=torch.float64)
    variance = predictive.total_variance.double()
    require_known("the variance of predictive", variance, finite=True)
    if (variance <= 0).any():
        raise DataError(
            f"predictive must have a positive variance, got {float(variance.min())}. Fit the "
            "noise first, or pass scaled=False."
        )
    return variance.sqrt()


def _require_outputs(predictive: Predictive, outputs: int, verb: str) -> GaussianPredictive:
    gaussian = require_gaussian(verb, predictive)
    if gaussian.mean.shape[1] != outputs:
        raise ArgumentError(
            f"predictive must have {outputs} outputs, as the rule has, got "
            f"{gaussian.mean.shape[1]}. Make the rule anew for this model."
        )
    return gaussian
