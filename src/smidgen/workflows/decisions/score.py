"""Decisions of every method on the test data, put into the results of a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

import smidgen.evaluate as evaluate
from smidgen.errors import ArgumentError
from smidgen.outputs.predictive import (
    BernoulliPredictive,
    ClassPredictive,
    GaussianPredictive,
    Predictive,
)
from smidgen.runtime.record import BASELINES
from smidgen.workflows.decisions.answers import GivenAnswers, list_automation, list_classes
from smidgen.workflows.decisions.rows import (
    ScoredRows,
    list_least_certain,
    list_strangest,
    sample_truth,
)
from smidgen.workflows.decisions.rules_on_test import count_promise_rows, try_rules
from smidgen.workflows.decisions.same_rules import try_same_rules
from smidgen.workflows.decisions.settings import CompareSettings
from smidgen.workflows.decisions.uncertainty_scores import (
    compare_scores,
    score_errors,
    score_shifts,
)
from smidgen.workflows.method import Examples, Method

COVERAGES = (0.5, 0.8, 0.9, 0.95)
"""The intervals of a regression that are reported."""


def add_decisions(
    results: Mapping[str, Any],
    methods: Sequence[Method],
    rows: ScoredRows,
    settings: CompareSettings,
    primary: str,
) -> dict[str, Any]:
    """Add to the results of a comparison what may be decided by each method.

    Args:
        results: What `score_methods` returned for the same methods.
        methods: With their predictions of the test rows.
        rows: The test rows.
        settings: What to look at.
        primary: Name of the method that the verdict is about.

    Returns:
        The results with more in each method's row, more differences, and `decisions`.
    """
    answers = {
        method.name: None
        if isinstance(method.predictive, GaussianPredictive)
        else GivenAnswers.of(method.predictive, rows.targets)
        for method in methods
    }
    parts = {
        method.name: _decide(method, answers[method.name], rows, settings)
        for method in methods
    }
    ours = next(method for method in methods if method.name == primary)
    listed = [{**row, **parts[row["name"]]} for row in results["methods"]]
    return {
        **results,
        "methods": listed,
        "differences": [*results["differences"], *_compare(methods, answers, settings)],
        "decisions": _describe(ours, answers[primary], rows, settings),
    }


def find_rows(
    settings: CompareSettings, model: nn.Module, test: Examples, predictive: Predictive
) -> ScoredRows:
    """Put targets, texts and names of the test rows together; refuse those that do not fit."""
    assert test.targets is not None
    texts, numbers, names = settings.texts, settings.row_numbers, settings.class_names
    for name, values in (("texts", texts), ("row_numbers", numbers)):
        if values is not None and len(values) != len(test.rows):
            raise ArgumentError(
                f"{name} must be one for each of {len(test.rows):,} test rows, got "
                f"{len(values):,}. Pass them in the order of the batches."
            )
    outputs = _count_outputs(predictive)
    if names is not None and len(names) != outputs:
        raise ArgumentError(
            f"class_names must be one for each of {outputs:,} outputs, got {len(names):,}. "
            "Name them all."
        )
    places = test.rows.nonzero().squeeze(-1)
    targets = test.targets.detach().cpu()
    names = names or _find_names(model, outputs)
    return ScoredRows(targets, places, texts, numbers, names)


def _find_names(model: nn.Module, outputs: int) -> tuple[str, ...] | None:
    """Find the names that a Hugging Face model has for its classes, unless placeholders."""
    names = getattr(getattr(model, "config", None), "id2label", None) or {}
    if set(names) != set(range(outputs)) or names[0] == "LABEL_0":
        return None
    return tuple(str(names[place]) for place in range(outputs))


def _count_outputs(predictive: Predictive) -> int:
    if isinstance(predictive, GaussianPredictive):
        return predictive.mean.shape[1]
    if isinstance(predictive, BernoulliPredictive):
        return predictive.probs.shape[1]
    assert isinstance(predictive, ClassPredictive)
    return predictive.class_count


def _decide(
    method: Method,
    answers: GivenAnswers | None,
    rows: ScoredRows,
    settings: CompareSettings,
) -> dict[str, Any]:
    """Describe one method's decisions, for its row of the record."""
    more: dict[str, Any] = {}
    if method.shifted:
        more["score_detection"] = score_shifts(method)
    if settings.rules is not None:
        more["same_rules"] = try_same_rules(settings.rules, method.predictive, rows)
    if answers is None:
        return {"intervals": _list_intervals(method.predictive, rows), **more}
    automation = list_automation(answers, settings.max_errors)
    classes, _ = list_classes(answers, rows.names, automation[0]["threshold"])
    errors = score_errors(method, answers)
    more |= {"error_detection": errors} if errors else {}
    return {"automation": automation, "by_class": classes, **more}


def _list_intervals(predictive: Predictive, rows: ScoredRows) -> list[dict[str, Any]]:
    """Measure how many targets lie in central intervals, and how wide those are."""
    assert isinstance(predictive, GaussianPredictive)
    entries = []
    for coverage in COVERAGES:
        low, high = predictive.central_interval(coverage)
        entries.append(
            {
                "coverage": coverage,
                "covered": evaluate.interval_coverage(low, high, rows.targets).to_dict(),
                "width": evaluate.interval_width(low, high).to_dict(),
            }
        )
    return entries


def _compare(
    methods: Sequence[Method],
    answers: Mapping[str, GivenAnswers | None],
    settings: CompareSettings,
) -> list[dict[str, Any]]:
    """Compare every method with the baselines on the same rows, with intervals."""
    baselines = [method for method in methods if method.name in BASELINES]
    differences = []
    for method in methods:
        for baseline in baselines:
            if method.name in (BASELINES[0], baseline.name):
                continue
            ours, theirs = answers[method.name], answers[baseline.name]
            if ours is not None and theirs is not None and len(ours.correct) > 1:
                differences += _compare_answers(method, baseline, ours, theirs, settings)
            differences += compare_scores(method, baseline, ours, theirs)
    return differences


def _compare_answers(
    method: Method,
    baseline: Method,
    ours: GivenAnswers,
    theirs: GivenAnswers,
    settings: CompareSettings,
) -> list[dict[str, Any]]:
    """Compare how much may be automated, and the areas under the risk–coverage curves."""
    sides = (ours.predictive, theirs.predictive, ours.targets)
    gaps = {
        "automation": evaluate.paired_automation_difference(
            *sides, max_error=settings.max_errors[0]
        ),
        "risk_coverage": evaluate.paired_area_difference(*sides),
    }
    names = {"method": method.name, "baseline": baseline.name}
    return [{**names, "score": score, **gap.to_dict()} for score, gap in gaps.items()]


def _describe(
    method: Method,
    answers: GivenAnswers | None,
    rows: ScoredRows,
    settings: CompareSettings,
) -> dict[str, Any]:
    """Describe the rows that a person should see, and what the rules did."""
    predictive = method.predictive
    score, strangest = list_strangest(predictive, rows, settings.rules)
    described: dict[str, Any] = {
        "least_certain": list_least_certain(predictive, rows),
        "strangest": strangest,
        "strange_score": score,
    }
    if answers is not None:
        described["max_error"] = settings.max_errors[0]
        described["multilabel"] = isinstance(predictive, BernoulliPredictive)
        _, left_out = list_classes(answers, rows.names, None)
        described["classes_left_out"] = left_out
    if isinstance(predictive, GaussianPredictive):
        described["truth"] = sample_truth(predictive, rows, settings.rules)
    if settings.rules is not None:
        described["rules"] = try_rules(settings.rules, method, rows)
        if settings.rules.abstain is None and isinstance(predictive, ClassPredictive):
            described["rows_for_promise"] = count_promise_rows(
                settings.rules, settings.max_errors[0]
            )
    return described
