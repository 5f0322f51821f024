"""Rules on test rows: what is counted is what the rule said."""

from __future__ import annotations

import pytest
import torch

from smidgen import decide
from smidgen.outputs.predictive import CategoricalPredictive, GaussianPredictive
from smidgen.workflows.decisions.rows import ScoredRows
from smidgen.workflows.decisions.rules_on_test import count_promise_rows, try_rules
from smidgen.workflows.method import Method

ROWS = 1500


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def classes(seed):
    logits = 3 * draw(ROWS, 3, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    targets = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)
    spread = torch.diag_embed(draw(ROWS, 3, seed=seed + 50).abs())
    return CategoricalPredictive(logits.log_softmax(-1), logits, spread), targets


def numbers(seed):
    mean, variance = draw(ROWS, 2, seed=seed), draw(ROWS, 2, seed=seed + 50).square()
    predictive = GaussianPredictive(mean, variance, torch.full((ROWS, 2), 0.5))
    truth = mean + predictive.total_variance.sqrt() * draw(ROWS, 2, seed=seed + 99)
    return predictive, truth


def test_a_missing_rule_to_abstain_has_its_rows_counted():
    made, _ = classes(0)
    rules = decide.Rules(strange=decide.strange(made))
    assert count_promise_rows(rules, 0.05) == {"needed": 45, "made": ROWS}
    assert count_promise_rows(decide.Rules(), 0.01) == {"needed": 230, "made": None}


def test_rules_of_classes():
    made, labels = classes(0)
    rules = decide.Rules(
        abstain=decide.abstain(made, labels, max_error=0.1),
        sets=decide.sets(made, labels, coverage=0.8),
        strange=decide.strange(made, rate=0.1),
    )
    predictive, targets = classes(1)
    other, _ = classes(2)
    method = Method("last-layer", predictive, shifted={"far": other})
    tried = try_rules(rules, method, ScoredRows(targets, torch.arange(ROWS)))
    answered = rules.abstain.apply(predictive)
    wrong = predictive.predicted[answered] != targets[answered]
    assert tried["abstain"]["answered"]["value"] == pytest.approx(
        float(answered.double().mean())
    )
    assert tried["abstain"]["error"]["value"] == pytest.approx(float(wrong.double().mean()))
    assert tried["abstain"]["max_error"] == 0.1
    assert tried["abstain"]["sentence"] == str(rules.abstain)
    sets = rules.sets.apply(predictive)
    held = sets[torch.arange(ROWS), targets].double().mean()
    assert tried["sets"]["covered"]["value"] == pytest.approx(float(held))
    assert tried["sets"]["size"]["value"] == pytest.approx(float(sets.sum() / ROWS))
    assert tried["sets"]["single"] == pytest.approx(
        float((sets.sum(1) == 1).double().mean())
    )
    flagged = rules.strange.apply(other).double().mean()
    assert tried["strange"]["shifted"]["far"]["value"] == pytest.approx(float(flagged))
    assert tried["strange"]["flagged"]["value"] == pytest.approx(0.1, abs=0.03)
    assert "intervals" not in tried


def test_rules_of_a_regression():
    made, truth = numbers(0)
    rules = decide.Rules(intervals=decide.intervals(made, truth, coverage=0.8))
    predictive, targets = numbers(1)
    rows = ScoredRows(targets, torch.arange(ROWS))
    tried = try_rules(rules, Method("last-layer", predictive), rows)["intervals"]
    low, high = rules.intervals.apply(predictive)
    held = ((low <= targets) & (targets <= high)).double().mean()
    assert tried["covered"]["value"] == pytest.approx(float(held))
    assert tried["covered"]["value"] == pytest.approx(0.8, abs=0.04)
    assert tried["width"]["value"] == pytest.approx(float((high - low).mean()))


def test_a_rule_that_answers_nothing_has_no_error():
    made, labels = classes(0)
    rule = decide.abstain(made, labels, max_error=0.1)
    predictive, targets = classes(1)
    unsure = CategoricalPredictive.from_logits(0.01 * predictive.logits)
    rows = ScoredRows(targets, torch.arange(ROWS))
    tried = try_rules(decide.Rules(abstain=rule), Method("map", unsure), rows)
    assert tried["abstain"]["answered"]["value"] == 0
    assert tried["abstain"]["error"] is None


def test_a_rule_by_distance_needs_features_and_is_left_out():
    made, _ = classes(0)
    distances = draw(ROWS).abs()
    rule = decide.strange(made, score="distance", distances=distances)
    predictive, targets = classes(1)
    rows = ScoredRows(targets, torch.arange(ROWS))
    assert try_rules(decide.Rules(strange=rule), Method("map", predictive), rows) == {}
