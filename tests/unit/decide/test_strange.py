"""What is strange: false alarms over draws, the choice of a score, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from smidgen import decide
from smidgen.errors import ArgumentError, DataError, TooFewRowsError
from smidgen.evaluate import auroc
from smidgen.outputs.predictive import CategoricalPredictive
from tests.support.decisions import make_classes, make_numbers


def widen(predictive, factor):
    """The same rows with a larger variance."""
    return replace(predictive, logit_covariance=factor * predictive.logit_covariance)


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_familiar_rows_are_flagged_as_often_as_was_asked(rate):
    predictive, _ = make_classes(20_000, with_variance=True)
    flagged, draws, rows = 0, 100, 100
    for draw in range(draws):
        numbers = torch.arange(2 * rows) + 2 * rows * draw
        rule = decide.strange(predictive.take(numbers[:rows]), rate=rate)
        flagged += int(rule.apply(predictive.take(numbers[rows:])).sum())
    # floor(101 · rate) of 101 places are above the threshold.
    expected, total = int(101 * rate) / 101, draws * rows
    deviation = (expected * (1 - expected) * (1 / total + 1 / 102 / draws)) ** 0.5
    assert expected <= rate
    assert abs(flagged / total - expected) < 3.5 * deviation


def test_shifted_rows_choose_the_score_that_finds_them():
    predictive, _ = make_classes(1000, with_variance=True)
    shifted = widen(make_classes(600, seed=5, with_variance=True)[0], 30.0)
    rule = decide.strange(predictive, rate=0.05, shifted=shifted)
    assert rule.score == "logit_variance"
    assert rule.apply(shifted).double().mean() > 0.8
    assert rule.rows == 500  # the half that has chosen nothing
    values = [decide.uncertainty(side, rule.score) for side in (predictive, shifted)]
    assert rule.auroc == pytest.approx(auroc(*values), abs=0.02)
    assert "On shifted rows that chose nothing its AUROC is 0.9" in str(rule)


def test_a_shift_of_the_logits_is_found_by_another_score():
    predictive, _ = make_classes(1000, with_variance=True)
    other, _ = make_classes(600, seed=5, with_variance=True)
    shifted = replace(other, logits=other.logits - 20)  # probabilities stay as they are
    assert decide.strange(predictive, shifted=shifted).score == "energy"


def test_distances_may_be_the_best_score():
    predictive, _ = make_classes(400)
    shifted, _ = make_classes(200, seed=1)
    near, far = torch.rand(400), torch.rand(200) + 0.9
    rule = decide.strange(
        predictive, shifted=shifted, distances=near, shifted_distances=far
    )
    assert rule.score == "distance"
    assert rule.apply(shifted, far).double().mean() > 0.8
    assert "distance to the training data" in str(rule)
    alone = decide.strange(predictive, score="distance", distances=near, rate=0.1)
    assert int(alone.apply(predictive, near).sum()) == 39
    with pytest.raises(
        ArgumentError, match="distances must be given for the score 'distance'"
    ):
        alone.apply(predictive)
    with pytest.raises(ArgumentError, match="shifted_distances must be given"):
        decide.strange(predictive, shifted=shifted, distances=near)


def test_a_regression_has_strange_rows_too():
    predictive, _ = make_numbers(500)
    rule = decide.strange(predictive, rate=0.1)
    assert int(rule.apply(predictive).sum()) == 49
    assert str(rule) == (
        "Calls a row strange where the variance of the outputs is above "
        f"{rule.threshold:.4g}: of rows like the 500 rows that made the rule, at most 10 % "
        "are, on average."
    )


def test_what_does_not_suit_is_refused():
    point, _ = make_classes(400)
    predictive, _ = make_classes(15, with_variance=True)
    with pytest.raises(ArgumentError, match="'logit_variance' needs uncertain weights"):
        decide.strange(point)
    with pytest.raises(ArgumentError, match="rate must be between 0 and 1, got 0.0"):
        decide.strange(predictive, rate=0.0)
    with pytest.raises(
        TooFewRowsError, match="rows must be 19 or more for rate=0.05, got 15"
    ):
        decide.strange(predictive)
    with pytest.raises(
        ArgumentError, match="score must be one of confidence, .*, distance"
    ):
        decide.strange(predictive, score="mahalanobis")
    with pytest.raises(DataError, match="score must differ between rows, got 15 times 0"):
        decide.strange(widen(predictive, 0.0))
    with pytest.raises(DataError, match=r"distances must be of shape \(15,\)"):
        decide.strange(predictive, score="distance", distances=torch.zeros(3))
    with pytest.raises(DataError, match="shifted must hold two rows or more"):
        decide.strange(point, shifted=point.take([0]))


def test_a_score_that_is_the_same_for_all_rows_is_not_chosen():
    """A point posterior's weights are certain: no row has mutual information or variance."""
    familiar, surer = (
        replace(predictive, information=torch.zeros(len(predictive)).double())
        for predictive in (
            make_classes(100)[0],
            CategoricalPredictive.from_logits(9 * make_classes(100, seed=5)[0].logits),
        )
    )
    # The shifted rows are the surer ones: every score that varies is worse than a coin.
    rule = decide.strange(familiar, shifted=surer, rate=0.1)
    assert rule.score in ("entropy", "confidence", "energy")
    assert rule.auroc < 0.5
