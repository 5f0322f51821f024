"""Scores of decisions, against slow loops and known numbers."""

from __future__ import annotations

import pytest
import torch

from smidgen import evaluate
from smidgen.errors import ArgumentError, DataError
from smidgen.evaluate.intervals import redraw
from smidgen.outputs.chance import binomial_interval
from smidgen.outputs.predictive import CategoricalPredictive, GaussianPredictive


def make_predictive(rows=60, classes=3, seed=0, digits=None):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=generator).double()
    if digits is not None:
        logits = logits.mul(digits).round().div(digits)  # many rows of equal confidence
    predictive = CategoricalPredictive.from_logits(logits)
    targets = torch.multinomial(predictive.probs, 1, generator=generator).squeeze(1)
    return predictive, targets


def slow_rate(confidence, correct, max_error):
    """The largest fraction answered, by trying every threshold."""
    best = 0.0
    for threshold in confidence:
        answered = confidence >= threshold
        if (1 - correct[answered]).mean() <= max_error + 1e-12:
            best = max(best, float(answered.double().mean()))
    return best


@pytest.mark.parametrize("digits", [None, 1])
@pytest.mark.parametrize("max_error", [0.05, 0.2, 0.9])
def test_the_automation_rate_is_the_largest_of_all_thresholds(digits, max_error):
    predictive, targets = make_predictive(digits=digits)
    right = evaluate.correct(predictive, targets)
    interval = evaluate.automation_rate(predictive, targets, max_error=max_error, draws=20)
    assert interval.value == pytest.approx(
        slow_rate(predictive.confidence, right, max_error)
    )
    drawn = redraw(
        lambda rows: torch.tensor(
            [slow_rate(predictive.confidence[r], right[r], max_error) for r in rows],
            dtype=torch.float64,
        ),
        len(targets),
        draws=20,
        seed=0,
    )
    low, high = drawn.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    assert (interval.low, interval.high) == pytest.approx((low, high))


def test_nothing_is_automated_if_the_surest_are_wrong():
    predictive, _ = make_predictive()
    wrong = (predictive.predicted + 1) % 3
    assert evaluate.automation_rate(predictive, wrong, draws=5).value == 0


def test_another_certainty_orders_the_rows():
    predictive, targets = make_predictive()
    right = evaluate.correct(predictive, targets)
    perfect = evaluate.automation_rate(
        predictive, targets, max_error=0.001, certainty=right, draws=5
    )
    assert perfect.value == pytest.approx(float(right.mean()))


@pytest.mark.parametrize("digits", [None, 1])
def test_the_difference_of_areas_is_that_of_the_curves(digits):
    first, targets = make_predictive(digits=digits)
    second, _ = make_predictive(seed=1, digits=digits)

    def area(side, rows):
        right = (side.predicted == targets)[rows].double()
        return evaluate.risk_coverage(side.confidence[rows], right).area

    interval = evaluate.paired_area_difference(first, second, targets, draws=30)
    slow = evaluate.bootstrap(
        lambda rows: area(first, rows) - area(second, rows), len(targets), draws=30
    )
    assert interval.to_dict() == pytest.approx(slow.to_dict())


def test_a_difference_to_itself_is_nothing():
    predictive, targets = make_predictive()
    for verb in (evaluate.paired_area_difference, evaluate.paired_automation_difference):
        interval = verb(predictive, predictive, targets, draws=10)
        assert (interval.value, interval.low, interval.high) == (0, 0, 0)


def test_rows_without_a_label_count_nowhere():
    predictive, targets = make_predictive()
    hidden = targets.clone()
    hidden[::3] = -100
    shown = hidden != -100
    assert evaluate.automation_rate(predictive, hidden, draws=5) == (
        evaluate.automation_rate(predictive.take(shown), targets[shown], draws=5)
    )
    ordered = evaluate.automation_rate(
        predictive, hidden, certainty=-predictive.entropy, draws=5
    )
    assert ordered == evaluate.automation_rate(
        predictive.take(shown),
        targets[shown],
        certainty=-predictive.entropy[shown],
        draws=5,
    )


def test_the_error_among_answers_is_counted_exactly():
    answered = torch.tensor([True] * 20 + [False] * 5)
    correct = torch.tensor([1.0] * 18 + [0.0] * 7)
    interval = evaluate.answered_error(answered, correct)
    assert interval.value == 0.1
    assert (interval.low, interval.high) == binomial_interval(2, 20)
    with pytest.raises(DataError, match="got none"):
        evaluate.answered_error(torch.zeros(3, dtype=torch.bool), torch.ones(3))


def test_sets_have_a_coverage_and_a_size():
    members = torch.tensor([[True, True, False], [True, False, False], [False] * 3])
    targets = torch.tensor([1, 0, -100])
    assert evaluate.set_coverage(members, targets).value == 1
    assert evaluate.set_coverage(members, torch.tensor([2, 0, 1])).value == pytest.approx(
        1 / 3
    )
    assert evaluate.set_size(members, draws=5).value == 1
    with pytest.raises(DataError, match=r"must be booleans of shape \(rows, classes\)"):
        evaluate.set_size(members.double())


def test_intervals_have_a_coverage_and_a_width():
    low, high = torch.zeros(4, 2), torch.tensor([1.0, 3.0]).expand(4, 2)
    targets = torch.tensor([[0.5, 2.0], [2.0, 2.0], [0.0, 3.0], [-1.0, 9.0]])
    coverage = evaluate.interval_coverage(low, high, targets)
    assert coverage.value == 5 / 8
    assert 0 <= coverage.low < coverage.value < coverage.high <= 1
    assert evaluate.interval_width(low, high, draws=5).value == 2
    one = evaluate.interval_coverage(low[:, 0], high[:, 0], targets[:, 0])
    assert (one.low, one.high) == binomial_interval(2, 4)
    with pytest.raises(DataError, match="of one shape"):
        evaluate.interval_width(low, high[:2])


def test_other_outputs_are_refused():
    numbers = GaussianPredictive(torch.zeros(3, 1), torch.ones(3, 1), torch.ones(3, 1))
    with pytest.raises(ArgumentError, match="must be categorical"):
        evaluate.automation_rate(numbers, torch.zeros(3))
    predictive, targets = make_predictive()
    with pytest.raises(ArgumentError, match="max_error must be between 0 and 1"):
        evaluate.automation_rate(predictive, targets, max_error=0.0)
