"""What saved rules do on test rows: how much is answered, held and flagged, with intervals."""

from __future__ import annotations

from typing import Any

import smidgen.evaluate as evaluate
from smidgen.decide import Rules
from smidgen.decide.abstain import rows_needed
from smidgen.decide.uncertainty import list_scores
from smidgen.outputs.predictive import ClassPredictive, GaussianPredictive
from smidgen.workflows.decisions.answers import GivenAnswers
from smidgen.workflows.decisions.rows import ScoredRows
from smidgen.workflows.method import Method

# What rules are asked for unless the caller says otherwise.
_CONFIDENCE = 0.9


def count_promise_rows(rules: Rules, max_error: float) -> dict[str, Any]:
    """Count the rows that a missing rule to abstain takes, and say what they did not do for."""
    made = max((rule.rows for rule in rules.by_name().values()), default=None)
    counted = {"needed": rows_needed(max_error, _CONFIDENCE), "made": made}
    told = {} if rules.unpromised is None else {"reason": rules.unpromised}
    return counted | told


def try_rules(rules: Rules, method: Method, rows: ScoredRows) -> dict[str, Any]:
    """Apply each rule to the predictions of the posterior that it was made for."""
    predictive = method.predictive
    tried: dict[str, Any] = {}
    if rules.abstain is not None:
        answered = rules.abstain.apply(predictive)
        right = GivenAnswers.of(predictive, rows.targets).correct
        tried["abstain"] = {
            "sentence": str(rules.abstain),
            "max_error": rules.abstain.max_error,
            "answered": evaluate.bootstrap_mean(answered.double()).to_dict(),
            "error": evaluate.answered_error(answered, right).to_dict()
            if answered.any()
            else None,
        }
    if rules.sets is not None and isinstance(predictive, ClassPredictive):
        sets = rules.sets.apply(predictive)
        sizes = sets.sum(1)
        tried["sets"] = {
            "sentence": str(rules.sets),
            "coverage": rules.sets.coverage,
            "covered": evaluate.set_coverage(sets, rows.targets).to_dict(),
            "size": evaluate.set_size(sets).to_dict(),
            "single": float((sizes == 1).double().mean()),
            "empty": float((sizes == 0).double().mean()),
        }
    if rules.intervals is not None and isinstance(predictive, GaussianPredictive):
        low, high = rules.intervals.apply(predictive)
        tried["intervals"] = {
            "sentence": str(rules.intervals),
            "coverage": rules.intervals.coverage,
            "covered": evaluate.interval_coverage(low, high, rows.targets).to_dict(),
            "width": evaluate.interval_width(low, high).to_dict(),
        }
    # A distance to the training data asks for features, which predictions do not hold.
    if rules.strange is not None and rules.strange.score in list_scores(predictive):
        strange = rules.strange.apply(predictive)
        tried["strange"] = {
            "sentence": str(rules.strange),
            "rate": rules.strange.rate,
            "flagged": evaluate.bootstrap_mean(strange.double()).to_dict(),
            "shifted": {
                name: evaluate.bootstrap_mean(rules.strange.apply(other).double()).to_dict()
                for name, other in method.shifted.items()
            },
        }
    return tried
