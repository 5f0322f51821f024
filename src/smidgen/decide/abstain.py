"""`abstain`: answer only where the error among the answers is as low as was asked.

With R(λ) = P(wrong | uncertainty < λ), find a λ, as large as the rows show, so that

    P(R(λ) > max_error) ≤ 1 − confidence

over the draws of the rows that find it. Order n rows by their uncertainty, the most certain
first. For the numbers m₁ < m₂ < … of a *fixed sequence*, which depends on n, max_error and
confidence alone, λ_j is the uncertainty of row m_j + 1, and the m_j rows before it are tested:
the test passes if the exact upper bound (Clopper and Pearson) of their error rate is at most
max_error. Go on while tests pass; the last that passed gives λ. The last number is n: it
answers everything.

Why this holds. Let R be continuous (no two rows are equally uncertain) and call λ bad if
R(λ) > e. The rule fails only if the *first* bad λ_j of the sequence passes (fixed-sequence
testing: those after it are not even looked at unless it does). Take the largest b below that λ_j
with R(b) = e, or the start, and all other points where R crosses e. Given how many rows lie between
these points, (1) which j is the first bad one is settled, as ranks are; (2) rows between two
crossings are wrong with probability exactly e, independently, as R is e at both ends; (3) given
λ_j, the rows from b to λ_j are independent draws from there, wrong with probability above e,
since they raise R from e to R(λ_j) > e. So the errors among the m_j rows are at least as many as
those of a binomial(m_j, e), whose bound is at most e with probability 1 − confidence at most.
No order of risk is assumed: a score may be useless, then few rows are answered, or none. The
row that gives λ_j is not among the tested, since it is no draw from the rows before it.

Ties. Rows that are equally uncertain are answered together or not at all: a test counts the rows
strictly below λ_j, m_j at most. A test of fewer rows than could pass, or of the same rows as the
one before, is no test and is passed over; only scores tell, no label. To see what this costs, order
tied rows at random, which makes R continuous: within one tie it only rises or only falls, so it
crosses e once at most. Which j is the first bad one now also hangs on how many of the rows beyond
a crossing are of the tie that holds it. That only adds errors: it is seen that many rows are
of a tie where R rises through e, which are wrong more often than e, or that few are of one
where it falls through e, which are wrong less often. The one tie that this does not cover is that
which holds the last of the fewest rows that could pass, if λ at its start is bad: passing it over
says that few rows lie before it. That case is not proven; in hundreds of simulated worlds made
to break the promise there, it held.

The numbers m are those at which one more error may be among the rows: between two of them a test
would only be harder to pass. The sequence starts at the largest that is at most a quarter of the
rows and passes with at most 14 errors. At the first number that could pass, without any error, a
single unlucky label would end it all; far later the most certain rows would no longer be tried
by themselves. Any start that looks at no label keeps the promise; this one was chosen for how many
rows it answers, in simulated worlds and on SST-2 and AG News.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import partial
from math import ceil, floor, log
from typing import ClassVar

import torch
from torch import Tensor

from smidgen.decide.calibration_rows import read_classes, require_open_fraction
from smidgen.decide.rule import DecisionRule, as_percent
from smidgen.decide.uncertainty import (
    SCORE_WORDS,
    UNCERTAINTY_SCORES,
    require_score,
    uncertainty,
)
from smidgen.errors import ArgumentError, PromiseError, TooFewRowsError
from smidgen.outputs.chance import binomial_interval, binomial_upper_bound
from smidgen.outputs.predictive import Predictive

# Where the sequence starts: with so many errors allowed at most, and such a part of the rows.
_FIRST_ERRORS, _FIRST_PART = 14, 4


@dataclass(frozen=True, kw_only=True)
class AbstainRule(DecisionRule):
    """Answers where the uncertainty is below `threshold`; everywhere if that is None.

    Of `rows` rows it answers `answered`, of which `errors` are wrong. `max_error` and
    `confidence` are None if only a fraction was asked for (`reject`).
    """

    name: ClassVar[str] = "abstain"
    score: str
    threshold: float | None
    answered: int
    errors: int
    max_error: float | None = None
    confidence: float | None = None
    reject: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_score(self.score, UNCERTAINTY_SCORES)
        if not 0 <= self.errors <= self.answered <= self.rows:
            raise ArgumentError(
                f"errors must be at most answered, and that at most rows, got {self.errors}, "
                f"{self.answered} and {self.rows}. Make the rule again."
            )

    def apply(self, predictive: Predictive) -> Tensor:
        """Decide which rows to answer.

        Args:
            predictive: Of new rows, made as those were that made the rule.

        Returns:
            True where the row is answered, (B,).
        """
        values = uncertainty(predictive, self.score)
        if self.threshold is None:
            return torch.ones_like(values, dtype=torch.bool)
        return values < self.threshold

    @property
    def automation(self) -> float:
        """The fraction of the rows that it answers."""
        return self.answered / self.rows

    @property
    def automation_interval(self) -> tuple[float, float]:
        """The exact 95 % interval of that fraction."""
        return binomial_interval(self.answered, self.rows)

    @property
    def error_rate(self) -> float | None:
        """The fraction of its answers that were wrong; None if it answers nothing."""
        return self.errors / self.answered if self.answered else None

    @property
    def error_bound(self) -> float:
        """The exact upper bound of that error, at `confidence` (or 95 %)."""
        return binomial_upper_bound(self.errors, self.answered, self.confidence or 0.95)

    def __str__(self) -> str:
        low, high = self.automation_interval
        where = "everything"
        if self.threshold is not None and self.score == "confidence":
            where = f"where the confidence is above {1 - self.threshold:.4g}"
        elif self.threshold is not None:
            where = f"where the {SCORE_WORDS[self.score]} is below {self.threshold:.4g}"
        if self.max_error is not None and self.confidence is not None:
            promise = (
                f"at most {as_percent(self.max_error)} of the answers are wrong, with "
                f"{as_percent(self.confidence)} confidence"
            )
        else:
            promise = "the error among the answers is not guaranteed"
        return (
            f"Answers {where}: {promise}. It answers {as_percent(self.automation)} of "
            f"{self._about_rows()} ({as_percent(low)} to {as_percent(high)}); "
            f"{self.errors:,} of {self.answered:,} answers were wrong."
        )


def abstain(
    predictive: Predictive,
    targets: Tensor,
    *,
    max_error: float = 0.05,
    confidence: float = 0.9,
    reject: float | None = None,
    score: str = "confidence",
) -> AbstainRule:
    """Find which rows to answer so that the error among the answers is at most `max_error`.

    Args:
        predictive: Categorical, of rows that chose nothing else: neither weights nor
            precision nor temperature.
        targets: Their classes, (B,); rows labelled −100 are left out.
        max_error: The largest error rate among answered rows, in (0, 1).
        confidence: How often, over draws of these rows, the promise must hold, in (0, 1).
        reject: Instead of a promise: leave out this fraction, the least certain rows.
        score: What orders the rows: "confidence", "entropy", "mutual_information",
            "logit_variance" or "energy".

    Returns:
        The rule. Print it for what it promises and how much it automates.
    """
    classes, labels, left_out = read_classes("abstain", predictive, targets)
    values, order = uncertainty(classes, score).sort(stable=True)
    wrong = (classes.predicted != labels)[order].cumsum(0)
    if reject is not None:
        require_open_fraction("reject", reject, 0.1)
        count = len(values) - ceil(reject * len(values) - 1e-9)
        promise: dict[str, float] = {"reject": reject}
    else:
        require_open_fraction("max_error", max_error, 0.05)
        require_open_fraction("confidence", confidence, 0.9)
        count = _test_sequence(values, wrong, max_error, confidence)
        promise = {"max_error": max_error, "confidence": confidence}
    answered, threshold = _cut(values, count)
    return AbstainRule(
        rows=len(values),
        left_out=left_out,
        score=score,
        threshold=threshold,
        answered=answered,
        errors=_errors(wrong, answered),
        **promise,
    )


def rows_needed(max_error: float, confidence: float) -> int:
    """Count the rows whose answers must all be right for the smallest promise."""
    return ceil(log(1 - confidence) / log(1 - max_error) - 1e-9)


def list_counts(rows: int, max_error: float, confidence: float) -> list[int]:
    """List the numbers of most certain rows that are tested, in their order."""

    def passes(errors: int, count: int) -> bool:
        return binomial_upper_bound(errors, count, confidence) <= max_error

    counts = [rows_needed(max_error, confidence)]
    while counts[-1] < rows:
        errors, more = len(counts), range(counts[-1] + 1, rows + 1)
        counts.append(counts[-1] + 1 + bisect_left(more, True, key=partial(passes, errors)))
    later = bisect_right(counts, rows // _FIRST_PART) - 1
    first = min(max(later, 0), _FIRST_ERRORS)
    return [*(count for count in counts[first:] if count < rows), rows]


def _test_sequence(
    values: Tensor, wrong: Tensor, max_error: float, confidence: float
) -> int:
    """Find the last number of rows that passes, with no failure before it."""
    rows, least = len(values), rows_needed(max_error, confidence)
    if rows < least:
        possible = _round_up(1 - (1 - confidence) ** (1 / rows))
        ask = f", or ask for max_error={possible:g} or more" if possible < 1 else ""
        raise TooFewRowsError(
            f"targets must be of {least:,} labelled rows or more for max_error={max_error:g} "
            f"with confidence={confidence:g}, got {rows:,}. Pass more rows{ask}."
        )
    passed, failed = _run_tests(values, wrong, max_error, confidence)
    if failed is None or passed:
        return passed
    tied, distinct = "", values[:failed].unique().numel()
    if failed > list_counts(rows, max_error, confidence)[0]:
        tied = (
            f"These {failed:,} rows have too few distinct scores ({distinct:,}) to test a smaller "
            "part of them. "
        )
    rate = _find_possible(values, wrong, failed, confidence)
    ask = "Use a better model"
    if rate is not None:
        ask = f"Ask for max_error={rate:g} or more, or use a better model"
    raise PromiseError(
        f"max_error={max_error:g} cannot be promised with confidence={confidence:g}: of the "
        f"{failed:,} most certain rows {_errors(wrong, failed):,} are wrong. {tied}{ask}; more "
        f"rows help only if the error among the most certain is below {max_error:g}."
    )


def _run_tests(
    values: Tensor, wrong: Tensor, max_error: float, confidence: float
) -> tuple[int, int | None]:
    """Find the last number that passes, or 0, and how many rows the test had that failed."""
    passed, tested = 0, rows_needed(max_error, confidence) - 1
    for count in list_counts(len(values), max_error, confidence):
        answered, _ = _cut(values, count)
        if answered <= tested:
            # Ties leave too few rows to pass, or those of the test before: no label was seen.
            continue
        tested = answered
        if binomial_upper_bound(_errors(wrong, answered), answered, confidence) > max_error:
            return passed, answered
        passed = count
    return passed, None


def _find_possible(
    values: Tensor, wrong: Tensor, failed: int, confidence: float
) -> float | None:
    """Find an error that the same rows could promise, after a test that failed; None if none."""
    while True:
        rate = _round_up(binomial_upper_bound(_errors(wrong, failed), failed, confidence))
        if rate >= 1:
            return None
        # Another error has other tests, of which the first may fail again, at a higher rate.
        passed, again = _run_tests(values, wrong, rate, confidence)
        if passed or again is None:
            return rate
        failed = again


def _cut(values: Tensor, count: int) -> tuple[int, float | None]:
    """Count the rows below the uncertainty of row `count` (from 0), and return that too."""
    if count >= len(values):
        return len(values), None
    threshold = values[count]
    return int(torch.searchsorted(values, threshold)), float(threshold)


def _errors(wrong: Tensor, count: int) -> int:
    return int(wrong[count - 1]) if count else 0


def _round_up(rate: float) -> float:
    """Round a rate to two digits after the first zeros, never below it."""
    digits = 10.0 ** (1 - floor(log(max(rate, 1e-12), 10)))
    return min(1.0, ceil(rate * digits) / digits)
