"""The same kinds of rule for every method, so that their answers, sets and widths compare.

A saved rule was made for one posterior. For the others, and for it too, rules that promise the
same are made on one half of the test rows and tried on the other half, both ways round: no
row is judged by a rule that it made.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import torch
from torch import Tensor

import smidgen.decide as decide
import smidgen.evaluate as evaluate
from smidgen.decide import Rules
from smidgen.errors import DataError
from smidgen.outputs.predictive import ClassPredictive, GaussianPredictive, Predictive
from smidgen.workflows.decisions.answers import GivenAnswers
from smidgen.workflows.decisions.rows import ScoredRows

_Made = TypeVar("_Made", decide.AbstainRule, decide.SetRule, decide.IntervalRule)


def try_same_rules(
    rules: Rules, predictive: Predictive, rows: ScoredRows
) -> dict[str, dict[str, Any]]:
    """Try rules like these on one method; those that the rows are too few for are left out."""
    tried: dict[str, dict[str, Any]] = {}
    targets = rows.targets
    classes = isinstance(predictive, ClassPredictive)
    # Half of the rows may be too few for a promise that all of them could keep.
    if rules.abstain is not None and classes:
        with suppress(DataError):
            tried["abstain"] = _abstain_alike(rules.abstain, predictive, targets)
    if rules.sets is not None and classes:
        with suppress(DataError):
            tried["sets"] = _sets_alike(rules.sets, predictive, targets)
    if rules.intervals is not None and isinstance(predictive, GaussianPredictive):
        with suppress(DataError):
            tried["intervals"] = _intervals_alike(rules.intervals, predictive, targets)
    return tried


def _abstain_alike(
    rule: decide.AbstainRule, predictive: Predictive, targets: Tensor
) -> dict[str, Any]:
    def make(some: Predictive, labels: Tensor) -> decide.AbstainRule:
        if rule.max_error is None or rule.confidence is None:
            return decide.abstain(some, labels, reject=rule.reject)
        return decide.abstain(
            some, labels, max_error=rule.max_error, confidence=rule.confidence
        )

    (answered,) = _cross(make, predictive, targets)
    right = GivenAnswers.of(predictive, targets).correct
    return {
        "answered": evaluate.bootstrap_mean(answered.double()).to_dict(),
        "error": evaluate.answered_error(answered, right).to_dict(),
    }


def _sets_alike(
    rule: decide.SetRule, predictive: Predictive, targets: Tensor
) -> dict[str, Any]:
    def make(some: Predictive, labels: Tensor) -> decide.SetRule:
        return decide.sets(
            some,
            labels,
            coverage=rule.coverage,
            kind=rule.kind,
            by_class=rule.by_class,
            allow_empty=rule.allow_empty,
        )

    (members,) = _cross(make, predictive, targets)
    return {
        "covered": evaluate.set_coverage(members, targets).to_dict(),
        "size": evaluate.set_size(members).to_dict(),
    }


def _intervals_alike(
    rule: decide.IntervalRule, predictive: Predictive, targets: Tensor
) -> dict[str, Any]:
    def make(some: Predictive, numbers: Tensor) -> decide.IntervalRule:
        return decide.intervals(some, numbers, coverage=rule.coverage, scaled=rule.scaled)

    low, high = _cross(make, predictive, targets)
    return {
        "covered": evaluate.interval_coverage(low, high, targets).to_dict(),
        "width": evaluate.interval_width(low, high).to_dict(),
    }


def _cross(
    make: Callable[[Predictive, Tensor], _Made], predictive: Predictive, targets: Tensor
) -> list[Tensor]:
    """Apply the rule of each half of the rows to the other: what it says of all, (B, ...)."""
    count = len(predictive)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    halves = order[: count // 2], order[count // 2 :]
    said: list[tuple[Tensor, ...]] = []
    for made, tried in (halves, halves[::-1]):
        found = make(predictive.take(made), targets[made]).apply(predictive.take(tried))
        said.append(found if isinstance(found, tuple) else (found,))
    # Rows of the second half come first in what was said; back to their places.
    places = torch.cat([halves[1], halves[0]]).argsort()
    return [torch.cat(parts)[places] for parts in zip(*said, strict=True)]
