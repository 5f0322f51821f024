"""The answers of one method: who is right, how much may be automated, class by class."""

from __future__ import annotations

import pytest
import torch

from smidgen.outputs.predictive import BernoulliPredictive, CategoricalPredictive
from smidgen.workflows.decisions.answers import (
    MOST_CLASSES,
    GivenAnswers,
    list_automation,
    list_classes,
)


def answers_of(confidence, right):
    """GivenAnswers of two classes, the first always the likeliest."""
    sure = torch.tensor(confidence, dtype=torch.float64)
    log_probs = torch.stack([sure, 1 - sure], -1).log()
    return GivenAnswers.of(
        CategoricalPredictive(log_probs, log_probs), 1 - torch.tensor(right)
    )


def classes(rows=300, count=4, seed=0):
    """GivenAnswers that are right a little more often than by chance, and their classes."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, count, generator=generator, dtype=torch.float64)
    targets = torch.multinomial((logits / 2).softmax(-1), 1, generator=generator)
    return CategoricalPredictive.from_logits(logits), targets.squeeze(-1)


def labels(rows=200, count=3):
    generator = torch.Generator().manual_seed(2)
    logits = 2 * torch.randn(rows, count, generator=generator, dtype=torch.float64)
    targets = torch.bernoulli((logits / 2).sigmoid(), generator=generator)
    return BernoulliPredictive.from_logits(logits), targets


def share_by_trying(confidence, correct, max_error):
    """The largest share with so few errors, by trying every threshold."""
    pairs = list(
        zip(confidence.flatten().tolist(), correct.flatten().tolist(), strict=True)
    )
    best = 0.0
    for threshold, _ in pairs:
        kept = [right for sure, right in pairs if sure >= threshold]
        if kept.count(0.0) <= max_error * len(kept) + 1e-12:
            best = max(best, len(kept) / len(pairs))
    return best


@pytest.mark.parametrize("make", [classes, labels])
@pytest.mark.parametrize("max_error", [0.02, 0.1, 0.3])
def test_the_share_is_the_largest_of_all_thresholds(make, max_error):
    answers = GivenAnswers.of(*make())
    (entry,) = list_automation(answers, [max_error])
    wanted = share_by_trying(answers.confidence, answers.correct, max_error)
    assert 0 < wanted < 1
    assert entry["value"] == pytest.approx(wanted)
    assert entry["low"] <= entry["value"] <= entry["high"]
    given = answers.confidence >= entry["threshold"]
    assert float(given.double().mean()) == pytest.approx(wanted)
    assert entry["error"] == pytest.approx(1 - float(answers.correct[given].mean()))
    assert entry["error"] <= max_error


def test_nothing_may_be_automated_where_the_surest_answer_is_wrong():
    answers = answers_of((0.9, 0.8, 0.7), right=(0, 1, 0))
    (entry,) = list_automation(answers, [0.05])
    assert entry["value"] == 0
    assert entry["threshold"] is None
    assert entry["error"] is None


def test_everything_may_be_automated_where_all_is_right():
    (entry,) = list_automation(answers_of((0.9, 0.8, 0.7), right=(1, 1, 1)), [0.05])
    assert (entry["value"], entry["error"]) == (1, 0)
    assert entry["threshold"] == pytest.approx(0.7)


def test_a_row_is_wrong_if_one_of_its_labels_is():
    predictive = BernoulliPredictive.from_logits(torch.ones(3, 2))
    answers = GivenAnswers.of(predictive, torch.tensor([[1, 1], [1, 0], [0, 0]]))
    assert answers.is_wrong.tolist() == [False, True, True]


def test_classes_are_described_one_by_one():
    predictive, targets = classes()
    answers = GivenAnswers.of(predictive, targets)
    rows, left_out = list_classes(answers, list("abcd"), 0.6)
    assert left_out == 0
    assert [row["name"] for row in rows] == ["a", "b", "c", "d"]
    assert sum(row["rows"] for row in rows) == len(targets)
    for number, row in enumerate(rows):
        mine = targets == number
        right = predictive.predicted[mine] == number
        assert row["accuracy"] == pytest.approx(float(right.double().mean()))
        assert row["confidence"] == pytest.approx(float(predictive.confidence[mine].mean()))
        given = (predictive.confidence[mine] >= 0.6).double().mean()
        assert row["automation"] == pytest.approx(float(given))
    none, _ = list_classes(answers, None, None)
    assert [row["name"] for row in none] == ["0", "1", "2", "3"]
    assert {row["automation"] for row in none} == {0.0}


def test_labels_are_described_one_by_one():
    predictive, targets = labels()
    answers = GivenAnswers.of(predictive, targets)
    rows, left_out = list_classes(answers, None, 0.7)
    assert left_out == 0
    for number, row in enumerate(rows):
        right = (predictive.probs[:, number] >= 0.5) == (targets[:, number] == 1)
        assert row["rows"] == len(targets)
        assert row["accuracy"] == pytest.approx(float(right.double().mean()))


def test_of_many_classes_the_most_frequent_are_described():
    predictive, targets = classes(rows=400, count=MOST_CLASSES + 20)
    # A class without test rows is no class of these data.
    targets[targets == 3] = 5
    answers = GivenAnswers.of(predictive, targets)
    rows, left_out = list_classes(answers, None, 0.5)
    counts = torch.bincount(targets, minlength=MOST_CLASSES + 20)
    assert len(rows) == MOST_CLASSES
    assert left_out == int((counts > 0).sum()) - MOST_CLASSES
    kept = {int(row["name"]) for row in rows}
    assert 3 not in kept
    dropped = set(range(MOST_CLASSES + 20)) - kept
    assert min(counts[i] for i in kept) >= max(counts[i] for i in dropped)
