"""How good are decisions? What can be automated, how wide intervals and how large sets are.

Pure functions of predictions, or of what a rule of `smidgen.decide` returned for them, and
targets of test rows that made no rule.
"""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

import torch
from torch import Tensor

from smidgen.errors import DataError, require_kind
from smidgen.evaluate import checks, scores
from smidgen.evaluate.intervals import (
    Interval,
    bootstrap_mean,
    percentile_interval,
    redraw,
)
from smidgen.outputs.chance import binomial_interval
from smidgen.outputs.likelihood.base import has_target
from smidgen.outputs.predictive import Predictive


def automation_rate(
    predictive: Predictive,
    targets: Tensor,
    *,
    max_error: float = 0.05,
    certainty: Tensor | None = None,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Compute how many rows can be answered at an error rate: the largest such fraction.

    Rows are answered from the surest on, those of equal certainty together; the fraction is
    the largest at which at most `max_error` of the answers are wrong, and 0 if there is
    none. It looks at the targets to find where to stop, so it is what a perfect choice of the
    threshold would reach: a rule of `smidgen.decide.abstain` promises its error instead.

    Args:
        predictive: Categorical; or Bernoulli, where each yes or no is an answer.
        targets: Class numbers, (B,), or labels 0 or 1, (B, C). Examples labelled −100 are
            left out.
        max_error: The largest error rate among the answers.
        certainty: What orders the rows, (B,), higher is surer; by default the confidence.
        draws: How many times to redraw the examples.
        level: The fraction of redraws inside the interval.
        seed: Of the redraws.

    Returns:
        The fraction, in [0, 1], with its bootstrap interval.
    """
    checks.require_fraction("max_error", max_error)
    side = _order("automation_rate", predictive, targets, certainty)

    def rates(rows: Tensor) -> Tensor:
        return _find_rates(side, rows, max_error)

    count = _count_rows(side)
    value = float(rates(torch.arange(count)[None]))
    drawn = redraw(rates, count, draws=draws, seed=seed)
    return percentile_interval(value, drawn, level)


def find_automation_rate(confidence: Tensor, correct: Tensor, *, max_error: float) -> float:
    """Compute the value of `automation_rate` from answers alone, without its interval.

    Args:
        confidence: How sure each answer is, (A,): any score, higher is surer.
        correct: Whether each is right, (A,).
        max_error: The largest error rate among the answers.

    Returns:
        The fraction, in [0, 1].
    """
    checks.require_fraction("max_error", max_error)
    correct = checks.as_zero_or_one("correct", correct)
    checks.require_same_length("correct", correct, "confidence", confidence)
    rows = torch.arange(len(correct))
    return float(_find_rates(_sort(rows, confidence, correct), rows[None], max_error))


def paired_automation_difference(
    first: Predictive,
    second: Predictive,
    targets: Tensor,
    *,
    max_error: float = 0.05,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Compute the difference of two `automation_rate` on the *same* examples.

    Args:
        first: One prediction, categorical or Bernoulli.
        second: The other, of the same examples; its fraction is subtracted.
        targets: Class numbers, (B,), or labels 0 or 1, (B, C).
        max_error: The largest error rate among the answers.
        draws: How many times to redraw the examples.
        level: The fraction of redraws inside the interval.
        seed: Of the redraws.

    Returns:
        The difference with its bootstrap interval; above 0 the first automates more.
    """
    checks.require_fraction("max_error", max_error)
    sides = [
        _order("paired_automation_difference", side, targets, None)
        for side in (first, second)
    ]

    def gaps(rows: Tensor) -> Tensor:
        ours, theirs = (_find_rates(side, rows, max_error) for side in sides)
        return ours - theirs

    count = _count_rows(sides[0])
    value = float(gaps(torch.arange(count)[None]))
    return percentile_interval(value, redraw(gaps, count, draws=draws, seed=seed), level)


def paired_area_difference(
    first: Predictive,
    second: Predictive,
    targets: Tensor,
    *,
    certainties: tuple[Tensor, Tensor] | None = None,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Compute the difference of two areas under the risk–coverage curve on the *same* examples.

    The areas are those of `risk_coverage` (AURC); lower is better, so below 0 the first
    tells its errors apart better, or makes fewer.

    Args:
        first: One prediction, categorical or Bernoulli.
        second: The other, of the same examples; its area is subtracted.
        targets: Class numbers, (B,), or labels 0 or 1, (B, C).
        certainties: What orders the rows of each, (B,), higher is surer; by default the
            confidence.
        draws: How many times to redraw the examples.
        level: The fraction of redraws inside the interval.
        seed: Of the redraws.

    Returns:
        The difference with its bootstrap interval.
    """
    sides = [
        _order("paired_area_difference", side, targets, certainty)
        for side, certainty in zip(
            (first, second), certainties or (None, None), strict=True
        )
    ]

    def gaps(rows: Tensor) -> Tensor:
        ours, theirs = (_find_areas(side, rows) for side in sides)
        return ours - theirs

    count = _count_rows(sides[0])
    value = float(gaps(torch.arange(count)[None]))
    return percentile_interval(value, redraw(gaps, count, draws=draws, seed=seed), level)


def answered_error(answered: Tensor, correct: Tensor, *, level: float = 0.95) -> Interval:
    """Compute the error rate among the rows that a rule answers, with its exact interval.

    Args:
        answered: True where a row is answered, (B,), as `AbstainRule.apply` says.
        correct: Whether each answer is right, (B,).
        level: The probability of the interval (Clopper and Pearson, 1934).

    Returns:
        The error rate with its interval.

    Raises:
        DataError: If no row is answered.
    """
    checks.require_fraction("level", level)
    answered = checks.as_zero_or_one("answered", answered)
    correct = checks.as_zero_or_one("correct", correct)
    checks.require_same_length("correct", correct, "answered", answered)
    rows = int(answered.sum())
    if not rows:
        raise DataError(
            "answered must have a row that is answered, got none. Pass more rows."
        )
    errors = int((answered * (1 - correct)).sum())
    return Interval(errors / rows, *binomial_interval(errors, rows, level))


def set_coverage(members: Tensor, targets: Tensor, *, level: float = 0.95) -> Interval:
    """Compute how often sets hold the true class, with its exact interval.

    Args:
        members: True for each class in the set of a row, (B, C), as `SetRule.apply` says.
        targets: Class numbers, (B,). Examples labelled −100 are left out.
        level: The probability of the interval (Clopper and Pearson, 1934).

    Returns:
        The fraction with its interval.
    """
    members = _as_members(members)
    require_kind("targets", targets, Tensor, "Use torch.tensor(targets)")
    targets = targets.detach().cpu()
    if targets.shape == members.shape[:1] and not targets.is_floating_point():
        members, targets = members[targets != -100], targets[targets != -100]
    labels = checks.as_class_numbers(targets, *members.shape)
    held = members.gather(1, labels[:, None]).squeeze(1)
    return _exact_interval(held, level)


def set_size(
    members: Tensor, *, draws: int = 1000, level: float = 0.95, seed: int = 0
) -> Interval:
    """Compute how many classes a set holds on average.

    Args:
        members: True for each class in the set of a row, (B, C), as `SetRule.apply` says.
        draws: How many times to redraw the examples.
        level: The fraction of redraws inside the interval.
        seed: Of the redraws.

    Returns:
        The mean size with its bootstrap interval.
    """
    sizes = _as_members(members).sum(-1).double()
    return bootstrap_mean(sizes, draws=draws, level=level, seed=seed)


def interval_coverage(
    low: Tensor, high: Tensor, targets: Tensor, *, level: float = 0.95
) -> Interval:
    """Compute how often intervals hold their targets.

    Args:
        low: Lower ends, (B, C), as `IntervalRule.apply` says.
        high: Upper ends, (B, C).
        targets: Numbers, (B, C), or (B,) for one output.
        level: The probability of the interval: exact for one output, and by the normal
            approximation of its examples' fractions for several.

    Returns:
        The fraction of outputs with its interval.
    """
    low, high = _as_ends(low, high)
    numbers = checks.as_outputs_shape(targets, low)
    held = (low <= numbers) & (numbers <= high)
    if held.shape[1] == 1:
        return _exact_interval(held[:, 0], level)
    checks.require_fraction("level", level)
    fractions = held.double().mean(-1)
    value, rows = float(fractions.mean()), len(fractions)
    deviation = float(fractions.std()) if rows > 1 else 0.0
    half = NormalDist().inv_cdf((1 + level) / 2) * deviation / sqrt(rows)
    return Interval(value, max(0.0, value - half), min(1.0, value + half))


def interval_width(
    low: Tensor,
    high: Tensor,
    *,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Compute how wide intervals are on average, over examples and outputs.

    Args:
        low: Lower ends, (B, C), as `IntervalRule.apply` says.
        high: Upper ends, (B, C).
        draws: How many times to redraw the examples.
        level: The fraction of redraws inside the interval.
        seed: Of the redraws.

    Returns:
        The mean width with its bootstrap interval.
    """
    low, high = _as_ends(low, high)
    return bootstrap_mean((high - low).mean(-1), draws=draws, level=level, seed=seed)


def _exact_interval(held: Tensor, level: float) -> Interval:
    checks.require_fraction("level", level)
    rows, count = len(held), int(held.sum())
    return Interval(count / rows, *binomial_interval(count, rows, level))


def _as_members(members: Tensor) -> Tensor:
    require_kind("members", members, Tensor, "Pass what SetRule.apply returned")
    members = members.detach().cpu()
    if members.dim() != 2 or members.dtype != torch.bool or not len(members):
        raise DataError(
            f"members must be booleans of shape (rows, classes), got {members.dtype} of shape "
            f"{tuple(members.shape)}. Pass what SetRule.apply returned."
        )
    return members


def _as_ends(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return both ends as fp64 (B, C) on the CPU."""
    ends: list[Tensor] = []
    for name, end in (("low", low), ("high", high)):
        require_kind(name, end, Tensor, "Pass what IntervalRule.apply returned")
        end = end.detach().cpu().double()
        end = end[:, None] if end.dim() == 1 else end
        if end.dim() != 2 or end.shape != (ends[0] if ends else end).shape or not len(end):
            raise DataError(
                "low and high must be of one shape, (rows, outputs), got "
                f"{tuple(low.shape)} and {tuple(high.shape)}. Pass what IntervalRule.apply "
                "returned."
            )
        checks.require_numbers(name, end)
        ends.append(end)
    return ends[0], ends[1]


_Ordered = tuple[Tensor, Tensor, Tensor]


def _order(
    verb: str, predictive: Predictive, targets: Tensor, certainty: Tensor | None
) -> _Ordered:
    """Order answers from the surest on: their rows, errors, and where equals end, (A,) each."""
    confidence, right = scores.confidence_and_correct(verb, predictive, targets)
    # With several labels each yes or no is an answer, and those of a row are redrawn together.
    row_of = torch.arange(len(right))
    if right.dim() == 2:
        row_of = row_of.repeat_interleave(right.shape[1])
        confidence, right = confidence.flatten(), right.flatten()
    if certainty is not None:
        confidence = checks.as_vector("certainty", certainty)
        checks.require_same_length("certainty", confidence, "targets", targets)
        confidence = confidence[has_target(targets.detach().cpu())]
    return _sort(row_of, confidence, right)


def _sort(row_of: Tensor, confidence: Tensor, right: Tensor) -> _Ordered:
    """Order the answers of rows from the surest on."""
    ordered, order = checks.as_vector("confidence", confidence).sort(
        descending=True, stable=True
    )
    is_last = torch.ones(len(order), dtype=torch.bool)
    is_last[:-1] = ordered[1:] != ordered[:-1]
    return row_of[order], (1 - right)[order], is_last


def _count_rows(side: _Ordered) -> int:
    return int(side[0].max()) + 1


def _count_along(side: _Ordered, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Count answers and errors among the surest of each redraw (K, n), (K, A) each."""
    order, wrong, _ = side
    times = torch.zeros(len(rows), rows.shape[1], dtype=torch.float64)
    times.scatter_add_(1, rows, torch.ones_like(rows, dtype=torch.float64))
    times = times[:, order]
    return times.cumsum(1), (times * wrong).cumsum(1)


def _find_rates(side: _Ordered, rows: Tensor, max_error: float) -> Tensor:
    """The largest fraction answered at an error rate, of each redraw, (K,)."""
    seen, errors = _count_along(side, rows)
    allowed = side[2] & (errors <= max_error * seen + 1e-9)
    return torch.where(allowed, seen, 0).amax(1) / seen[:, -1]


def _find_areas(side: _Ordered, rows: Tensor) -> Tensor:
    """The area under the risk–coverage curve of each redraw, (K,)."""
    seen, errors = (counts[:, side[2]] for counts in _count_along(side, rows))
    # Before the surest of a redraw nothing is answered, and nothing is added either.
    risk = errors / seen.clamp_min(1)
    added = seen.diff(dim=1, prepend=torch.zeros(len(seen), 1, dtype=torch.float64))
    return (risk * added).sum(1) / seen[:, -1]
