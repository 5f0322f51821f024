"""Rules of one kind for every method: no row is judged by a rule that it made."""

from __future__ import annotations

import pytest
import torch

from smidgen import decide
from smidgen.outputs.predictive import (
    BernoulliPredictive,
    CategoricalPredictive,
    GaussianPredictive,
)
from smidgen.workflows.decisions.rows import ScoredRows
from smidgen.workflows.decisions.same_rules import try_same_rules

ROWS = 2000


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def classes():
    logits = 3 * draw(ROWS, 3)
    generator = torch.Generator().manual_seed(1)
    targets = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)
    return CategoricalPredictive.from_logits(logits), targets


def halves():
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    return order[: ROWS // 2], order[ROWS // 2 :]


def test_sets_are_those_of_the_other_half():
    predictive, targets = classes()
    rule = decide.sets(predictive, targets, coverage=0.8, kind="aps")
    rows = ScoredRows(targets, torch.arange(ROWS))
    found = try_same_rules(decide.Rules(sets=rule), predictive, rows)["sets"]
    held = size = 0
    for made, tried in (halves(), halves()[::-1]):
        other = decide.sets(predictive.take(made), targets[made], coverage=0.8, kind="aps")
        members = other.apply(predictive.take(tried))
        held += int(members[torch.arange(len(tried)), targets[tried]].sum())
        size += int(members.sum())
    assert found["covered"]["value"] == pytest.approx(held / ROWS)
    assert found["size"]["value"] == pytest.approx(size / ROWS)


def test_answers_are_those_of_the_other_half():
    predictive, targets = classes()
    rule = decide.abstain(predictive, targets, max_error=0.1, confidence=0.8)
    rows = ScoredRows(targets, torch.arange(ROWS))
    found = try_same_rules(decide.Rules(abstain=rule), predictive, rows)["abstain"]
    answered = wrong = 0
    for made, tried in (halves(), halves()[::-1]):
        other = decide.abstain(
            predictive.take(made), targets[made], max_error=0.1, confidence=0.8
        )
        given = other.apply(predictive.take(tried))
        answered += int(given.sum())
        wrong += int((predictive.predicted[tried] != targets[tried])[given].sum())
    assert 0 < answered < ROWS
    assert found["answered"]["value"] == pytest.approx(answered / ROWS)
    assert found["error"]["value"] == pytest.approx(wrong / answered)


def test_a_fraction_that_is_not_answered_is_the_same_for_all():
    predictive, targets = classes()
    rule = decide.abstain(predictive, targets, reject=0.25)
    rows = ScoredRows(targets, torch.arange(ROWS))
    found = try_same_rules(decide.Rules(abstain=rule), predictive, rows)["abstain"]
    assert found["answered"]["value"] == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize("scaled", [True, False])
def test_a_right_variance_makes_intervals_narrower(scaled):
    deviation = draw(ROWS, 1, seed=2).exp()
    mean = draw(ROWS, 1)
    targets = mean + deviation * draw(ROWS, 1, seed=3)
    noise = torch.full((ROWS, 1), 0.01, dtype=torch.float64)
    ours = GaussianPredictive(mean, deviation.square(), noise)
    plain = GaussianPredictive(mean, torch.zeros(ROWS, 1), torch.ones(ROWS, 1))
    rows = ScoredRows(targets, torch.arange(ROWS))
    rule = decide.intervals(ours, targets, coverage=0.9, scaled=scaled)
    found = [
        try_same_rules(decide.Rules(intervals=rule), each, rows)["intervals"]
        for each in (ours, plain)
    ]
    for each in found:
        assert each["covered"]["value"] == pytest.approx(0.9, abs=0.03)
    widths = [each["width"]["value"] for each in found]
    assert (widths[0] < 0.9 * widths[1]) is scaled


def test_what_rows_are_too_few_for_is_left_out():
    predictive, targets = classes()
    rules = decide.Rules(
        abstain=decide.abstain(predictive, targets, max_error=0.1),
        sets=decide.sets(predictive, targets),
    )
    few = torch.arange(12)
    rows = ScoredRows(targets[:12], few)
    assert try_same_rules(rules, predictive.take(few), rows) == {}
    labels = BernoulliPredictive.from_logits(draw(12, 3))
    assert try_same_rules(rules, labels, ScoredRows(torch.ones(12, 3), few)) == {}
