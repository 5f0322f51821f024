"""`make_rules`: what to answer, what to call strange, which sets and intervals, by a posterior."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from smidgen.decide import Rules, abstain, intervals, sets, strange
from smidgen.decide.abstain import AbstainRule
from smidgen.decide.calibration_rows import require_open_fraction
from smidgen.decide.rule import DecisionRule
from smidgen.decide.sets import SetRule
from smidgen.decide.strange import STRANGE_SCORES, StrangeRule
from smidgen.decide.uncertainty import list_scores, uncertainty
from smidgen.errors import DataError, PromiseError, TooFewRowsError, require_kind, warn
from smidgen.outputs.batches import as_batches
from smidgen.outputs.followed_predictive import FollowedPredictive
from smidgen.outputs.likelihood.base import has_target
from smidgen.outputs.predictive import ClassPredictive, GaussianPredictive, Predictive
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.base import Posterior
from smidgen.prediction import predict_batches
from smidgen.types import Batch

_Made = TypeVar("_Made", bound=DecisionRule)
_SET_COVERAGE, _INTERVAL_COVERAGE = 0.9, 0.95


def make_rules(
    posterior: Posterior,
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    *,
    max_error: float = 0.05,
    confidence: float = 0.9,
    coverage: float | None = None,
    rate: float = 0.05,
    progress: bool = True,
) -> Rules:
    """Make the rules that suit a posterior, from labelled rows that chose nothing else.

    Classes get rules to abstain, for sets and for what is strange; a regression for intervals
    and for what is strange; several labels for what is strange. A promise that the rows are
    too few for is left out, with a warning that says how many would do; so is one that the
    model is wrong too often for, with what could be promised.

    Args:
        posterior: A posterior of this model, calibrated.
        model: The model, or its `Problem`. It is left as it was.
        batches: Labelled batches from any loader, read once. If they trained, calibrated or
            chose anything, no promise holds.
        max_error: The largest error rate among answered rows, in (0, 1).
        confidence: How often, over draws of these rows, that must hold, in (0, 1).
        coverage: How often sets and intervals hold the truth; by default 0.9 for classes
            and 0.95 for numbers.
        rate: The largest fraction of familiar rows that is called strange, in (0, 1).
        progress: Show a progress bar.

    Returns:
        The rules. Print them for what they promise; `save` writes them beside the posterior.
    """
    # Before any pass.
    require_open_fraction("max_error", max_error, 0.05)
    require_open_fraction("confidence", confidence, 0.9)
    require_open_fraction("rate", rate, 0.05)
    if coverage is not None:
        require_open_fraction("coverage", coverage, 0.9)
    require_kind(
        "posterior", posterior, Posterior, "The order is (posterior, model, batches)"
    )
    predictive, targets = _predict_labelled(posterior, model, batches, progress)
    made = Rules(strange=_make_strange(predictive, rate))
    if isinstance(predictive, ClassPredictive):
        part = _SET_COVERAGE if coverage is None else coverage
        answered, unpromised = _make_abstain(
            lambda: abstain(
                predictive, targets, max_error=max_error, confidence=confidence
            ),
        )
        listed = _make_sets(predictive, targets, part)
        made = replace(made, abstain=answered, sets=listed, unpromised=unpromised)
    elif isinstance(predictive, GaussianPredictive):
        part = _INTERVAL_COVERAGE if coverage is None else coverage
        held = _try("for intervals", lambda: intervals(predictive, targets, coverage=part))
        made = replace(made, intervals=held)
    return made.for_posterior(posterior)


def _try(purpose: str, make: Callable[[], _Made]) -> _Made | None:
    """Make a rule, or warn that these rows are too few or too often wrong for it."""
    try:
        return make()
    except (TooFewRowsError, PromiseError) as error:
        warn(f"there is no rule {purpose}: {error}")
        return None


def _make_abstain(make: Callable[[], AbstainRule]) -> tuple[AbstainRule | None, str | None]:
    """Make the rule to abstain, or say why its promise cannot be made, however many the rows."""
    told: list[str] = []

    def try_it() -> AbstainRule:
        try:
            return make()
        except PromiseError as error:
            told.append(str(error))
            raise

    return _try("to abstain", try_it), next(iter(told), None)


def _make_strange(predictive: Predictive, rate: float) -> StrangeRule | None:
    """Make the rule by the first score that the predictive has, if one differs between rows."""
    for score in STRANGE_SCORES:
        if score in list_scores(predictive):
            values = uncertainty(predictive, score)
            if (values != values[0]).any():
                make = partial(strange, predictive, rate=rate, score=score)
                return _try("to call rows strange", make)
    warn(
        "there is no rule to call rows strange: the posterior is as certain of every row. "
        "Give it stochastic weights, or measure a FeatureDistance."
    )
    return None


def _make_sets(
    predictive: ClassPredictive, targets: Tensor, coverage: float
) -> SetRule | None:
    if isinstance(predictive, FollowedPredictive):
        warn(
            f"there is no rule for sets: of {predictive.outputs:,} classes only the likeliest "
            "were kept. Predict with Link(keep='all') and call smidgen.decide.sets."
        )
        return None
    return _try("for sets", lambda: sets(predictive, targets, coverage=coverage))


def _predict_labelled(
    posterior: Posterior,
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    progress: bool,
) -> tuple[Predictive, Tensor]:
    """Predict all rows in one pass, and take those that have a label."""
    problem = as_problem(model)
    batches = as_batches(batches)
    collected: list[Tensor] = []

    def collect() -> Iterator[Batch]:
        for number, batch in enumerate(batches, 1):
            found = problem.targets(batch)
            if found is None:
                error = DataError(
                    "rules need labels, and a batch has none. Name them 'labels', or pass "
                    "Problem(model, targets=...)."
                )
                error.batch = number
                raise error
            collected.append(found.detach().cpu())
            yield batch

    predictive = predict_batches(posterior, problem, collect(), progress=progress)
    rows = sum(len(part) for part in collected)
    if rows != len(predictive):
        # A row for each token.
        collected = [part.flatten(0, 1) for part in collected]
    targets = torch.cat(collected)
    if not isinstance(predictive, GaussianPredictive) and len(targets) == len(predictive):
        labelled = has_target(targets)
        if labelled.any() and not labelled.all():
            # Padding, which no rule should take for a familiar row.
            return predictive.take(labelled), targets[labelled]
    return predictive, targets
