"""The rule to abstain: its promise over draws of known worlds, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from smidgen import decide
from smidgen.decide.abstain import list_counts, rows_needed
from smidgen.errors import ArgumentError, DataError, PromiseError, TooFewRowsError
from smidgen.outputs.chance import binomial_interval, binomial_upper_bound
from smidgen.outputs.predictive import CategoricalPredictive
from tests.support.decisions import (
    at_most,
    make_classes,
    make_generator,
    make_numbers,
)

GRID = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000


class World:
    """Rows of uncertainty s, uniform in [0, 1], that are wrong with probability `error(s)`."""

    def __init__(self, error, levels=None):
        self.error, self.levels = error, levels
        self.risk = error(self.see(GRID)).cumsum(0) / torch.arange(1, len(GRID) + 1)

    def see(self, s):
        """What is seen of s: itself, or one of a few levels."""
        return s if self.levels is None else (s * self.levels).floor() / self.levels

    def draw(self, rows, generator):
        s = self.see(torch.rand(rows, generator=generator, dtype=torch.float64))
        wrong = torch.rand(rows, generator=generator, dtype=torch.float64) < self.error(s)
        confidence = 1 - s / 2
        probs = torch.stack([confidence, 1 - confidence], 1)
        return CategoricalPredictive(probs.log(), probs.log()), wrong.long()

    def risk_of(self, rule):
        """The true error among the rows that a rule answers."""
        if rule.threshold is None:
            return float(self.risk[-1])
        # Uncertainty is 1 − confidence = s / 2, and those below are answered.
        answered = int((self.see(GRID) / 2 < rule.threshold - 1e-12).sum())
        return float(self.risk[max(answered - 1, 0)])


WORLDS = {
    "rising": World(lambda s: 0.01 + 0.5 * s**2.5),
    "sharp": World(lambda s: 0.002 + 0.9 * (s > 0.6)),
    "wavy": World(lambda s: 0.02 + 0.075 * (torch.sin(25 * s) < 0)),
    "falling": World(lambda s: 0.12 - 0.1 * s),
    "flat": World(lambda s: torch.full_like(s, 0.0501)),
    "ties": World(lambda s: 0.01 + 0.3 * s**2, levels=8),
    # The most certain tie is bad and holds about as many rows as a test needs.
    "bad first tie": World(lambda s: torch.where(s < 0.04, 0.12, 0.0477), levels=25),
    "few ties": World(lambda s: torch.where(s < 0.3, 0.056, 0.0475), levels=3),
}


@pytest.mark.parametrize("rows", [150, 1200])
@pytest.mark.parametrize("name", WORLDS)
def test_the_error_exceeds_what_was_asked_in_few_draws(name, rows):
    world, generator, draws = WORLDS[name], make_generator(rows), 500
    exceeded = 0
    for _ in range(draws):
        try:
            rule = decide.abstain(
                *world.draw(rows, generator), max_error=0.05, confidence=0.9
            )
        except PromiseError:
            continue
        exceeded += world.risk_of(rule) > 0.05
    assert exceeded / draws <= at_most(0.1, draws)


def test_the_promise_is_not_bought_by_answering_nothing():
    """In the world where errors rise, 0.6 could be answered at 5 %; most of it is."""
    world, generator = WORLDS["rising"], make_generator()
    best = float((world.risk <= 0.05).double().mean())
    rates = [decide.abstain(*world.draw(2000, generator)).automation for _ in range(50)]
    assert sum(rates) / len(rates) > 0.8 * best


def test_the_bound_of_the_last_test_is_below_the_error():
    rule = decide.abstain(*WORLDS["rising"].draw(2000, make_generator()))
    assert rule.error_bound <= 0.05
    assert rule.error_bound == binomial_upper_bound(rule.errors, rule.answered, 0.9)
    assert rule.error_rate == rule.errors / rule.answered
    assert rule.automation_interval == binomial_interval(rule.answered, 2000)


def test_it_counts_what_it_answers():
    predictive, wrong = WORLDS["rising"].draw(2000, make_generator())
    rule = decide.abstain(predictive, wrong)
    answered = rule.apply(predictive)
    assert int(answered.sum()) == rule.answered
    assert int(wrong[answered].sum()) == rule.errors


@pytest.mark.parametrize(
    ("rows", "error"), [(45, 0.05), (46, 0.05), (777, 0.05), (900, 0.2)]
)
def test_tests_are_where_one_more_error_may_be(rows, error):
    counts = list_counts(rows, error, 0.9)
    assert counts == sorted(set(counts))
    assert counts[-1] == rows
    assert counts[0] <= max(rows // 4, rows_needed(error, 0.9))

    def allowed(count):
        """How many errors a test of so many rows passes with; −1 if it cannot pass."""
        passing = [e for e in range(count) if binomial_upper_bound(e, count, 0.9) <= error]
        return max(passing, default=-1)

    for count in counts[:-1]:
        assert allowed(count) == allowed(count - 1) + 1


def test_the_fewest_rows_are_those_that_pass_without_an_error():
    assert rows_needed(0.05, 0.9) == 45
    assert binomial_upper_bound(0, 45, 0.9) <= 0.05 < binomial_upper_bound(0, 44, 0.9)


def test_too_few_rows_are_refused_with_how_many_would_do():
    predictive, targets = make_classes(30)
    message = (
        r"targets must be of 45 labelled rows or more for max_error=0.05 with "
        r"confidence=0.9, got 30. Pass more rows, or ask for max_error=0.074 or more."
    )
    with pytest.raises(TooFewRowsError, match=message):
        decide.abstain(predictive, targets)
    # What it says would do.
    sure = CategoricalPredictive.from_logits(torch.linspace(5, 9, 60).reshape(30, 2))
    decide.abstain(sure, sure.predicted, max_error=0.074)


def test_a_model_that_is_always_wrong_is_refused():
    predictive, _ = make_classes(500)
    wrong = (predictive.predicted + 1) % 3
    with pytest.raises(
        PromiseError, match=r"most certain rows 105 are wrong. Use a better model;"
    ):
        decide.abstain(predictive, wrong)


@pytest.mark.parametrize(
    "score", ["confidence", "entropy", "mutual_information", "logit_variance", "energy"]
)
def test_every_score_answers_the_most_certain_first(score):
    predictive, _ = make_classes(400, with_variance=True)
    values = decide.uncertainty(predictive, score)
    # Right exactly where the score is in its lower half.
    right = values < values.median()
    targets = torch.where(right, predictive.predicted, (predictive.predicted + 1) % 3)
    rule = decide.abstain(predictive, targets, max_error=0.1, score=score)
    assert 0.35 < rule.automation < 0.6
    assert right[rule.apply(predictive)].double().mean() > 0.9


def test_a_fraction_may_be_rejected_without_a_promise():
    predictive, targets = make_classes(200)
    rule = decide.abstain(predictive, targets, reject=0.1)
    assert rule.answered == int(rule.apply(predictive).sum()) == 180
    assert rule.max_error is None
    assert rule.errors == int(
        (predictive.predicted != targets)[rule.apply(predictive)].sum()
    )
    assert "the error among the answers is not guaranteed" in str(rule)
    least = predictive.confidence[rule.apply(predictive)].min()
    assert (predictive.confidence[~rule.apply(predictive)] <= least).all()


def test_an_easy_task_is_answered_whole():
    predictive, _ = make_classes(300)
    rule = decide.abstain(predictive, predictive.predicted)
    assert rule.threshold is None
    assert rule.apply(predictive).all()
    assert str(rule) == (
        "Answers everything: at most 5 % of the answers are wrong, with 90 % confidence. It "
        "answers 100 % of 300 rows (98.78 % to 100 %); 0 of 300 answers were wrong."
    )


def test_rows_without_a_label_are_left_out_and_counted():
    predictive, targets = WORLDS["rising"].draw(500, make_generator())
    hidden = targets.clone()
    hidden[::5] = -100
    shown = hidden != -100
    rule = decide.abstain(predictive, hidden)
    whole = decide.abstain(predictive.take(shown), targets[shown])
    assert rule.threshold == whole.threshold
    assert (rule.rows, rule.left_out) == (400, 100)
    assert "400 rows; 100 more had no label" in str(rule)
    with pytest.raises(DataError, match="all of 500 rows are -100"):
        decide.abstain(predictive, torch.full_like(targets, -100))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_error": 0}, "max_error must be between 0 and 1, got 0. Pass 0.05 for 5"),
        ({"max_error": 5}, "max_error must be between 0 and 1, got 5"),
        ({"confidence": 1.0}, "confidence must be between 0 and 1, got 1.0. Pass 0.9"),
        ({"reject": "0.1"}, "reject must be between 0 and 1, got '0.1'"),
        ({"score": "entrophy"}, "got 'entrophy'. Did you mean 'entropy'?"),
    ],
)
def test_wrong_arguments_are_refused(settings, message):
    predictive, targets = make_classes(100)
    with pytest.raises(ArgumentError, match=message):
        decide.abstain(predictive, targets, **settings)


def test_other_predictions_and_targets_are_refused():
    predictive, targets = make_classes(100)
    numbers, values = make_numbers(100)
    with pytest.raises(
        ArgumentError, match=r"categorical for abstain, got gaussian. Use smidgen.dec"
    ):
        decide.abstain(numbers, values)
    with pytest.raises(ArgumentError, match="predictive must be a Predictive, got Tensor"):
        decide.abstain(predictive.probs, targets)
    with pytest.raises(DataError, match=r"as many as the predictions \(100\), got 99"):
        decide.abstain(predictive, targets[1:])
    with pytest.raises(DataError, match=r"targets must be in \[0, 3\), got 7"):
        decide.abstain(predictive, torch.where(targets == 1, 7, targets))
    with pytest.raises(DataError, match="vector of class numbers, got torch.float64"):
        decide.abstain(predictive, targets.double())
    with pytest.raises(ArgumentError, match="needs uncertain weights"):
        decide.abstain(predictive, targets, score="logit_variance")


def test_the_advice_asks_for_more_than_what_was_asked():
    # More often wrong among the surest, so that later bounds are below what was asked for.
    probs = torch.linspace(0.99, 0.6, 600).double()
    predictive = CategoricalPredictive.from_logits(
        torch.stack([probs.logit(), torch.zeros(600).double()], 1)
    )
    targets = torch.zeros(600, dtype=torch.long)
    targets[:60:4] = 1
    with pytest.raises(PromiseError, match=r"Ask for max_error=") as caught:
        decide.abstain(predictive, targets, max_error=0.05)
    advised = float(str(caught.value).split("max_error=")[-1].split()[0])
    assert advised > 0.05


def make_tied(confidence, wrong=()):
    """Rows of these confidences in the first of two classes, and which are wrong."""
    confidence = torch.as_tensor(confidence).double()
    probs = torch.stack([confidence, 1 - confidence], 1)
    targets = torch.zeros(len(confidence), dtype=torch.long)
    targets[list(wrong)] = 1
    return CategoricalPredictive(probs.log(), probs.log()), targets


def test_rows_that_stand_twice_are_answered_as_if_once():
    predictive, targets = make_tied(torch.linspace(0.99, 0.6, 500).repeat_interleave(2))
    rule = decide.abstain(predictive, targets)
    assert (rule.answered, rule.errors) == (1000, 0)
    # The first test, of 45 rows, would part a pair.
    pairs = torch.linspace(0.99, 0.6, 60).repeat_interleave(2)
    assert decide.abstain(*make_tied(pairs)).answered == 120
    # Right but for the last quarter: the tie at the cut is left out whole.
    predictive, targets = make_tied(
        torch.linspace(0.99, 0.6, 500).repeat_interleave(2), range(750, 1000)
    )
    rule = decide.abstain(predictive, targets)
    assert 700 < rule.answered < 790
    assert rule.answered % 2 == 0
    assert int(rule.apply(predictive).sum()) == rule.answered


def test_saturated_confidences_are_answered():
    confidence = torch.cat([torch.ones(370), torch.linspace(0.999, 0.6, 630)])
    assert decide.abstain(*make_tied(confidence)).answered == 1000
    rule = decide.abstain(*make_tied(confidence, range(600, 1000)))
    assert 590 < rule.answered < 650
    # All that are saturated are tested together, which may fail.
    with pytest.raises(PromiseError, match="of the 377 most certain rows 40 are wrong"):
        decide.abstain(*make_tied(confidence, range(40)))


def test_a_table_of_a_few_distinct_rows_is_answered():
    confidence = torch.linspace(0.98, 0.6, 8).repeat_interleave(125)
    assert decide.abstain(*make_tied(confidence)).answered == 1000
    assert decide.abstain(*make_tied(confidence, range(500, 1000))).answered == 500
    assert decide.abstain(*make_tied([0.9] * 300)).answered == 300


def test_too_few_distinct_scores_are_said_in_words():
    with pytest.raises(DataError) as caught:
        decide.abstain(*make_tied([0.9] * 300, range(60)))
    message = str(caught.value)
    assert "of the 300 most certain rows 60 are wrong" in message
    assert (
        "These 300 rows have too few distinct scores (1) to test a smaller part" in message
    )
    advised = float(message.split("Ask for max_error=")[1].split()[0])
    assert decide.abstain(*make_tied([0.9] * 300, range(60)), max_error=advised).rows == 300


@pytest.mark.parametrize("rows", [1, 2, 45, 300])
def test_the_advice_is_never_to_allow_every_error(rows):
    predictive, wrong = make_tied(torch.linspace(0.99, 0.6, rows), range(rows))
    with pytest.raises(DataError) as caught:
        decide.abstain(predictive, wrong, confidence=0.999 if rows < 45 else 0.9)
    for word in str(caught.value).split("max_error=")[1:]:
        assert float(word.split()[0].rstrip(",.:")) < 1


@pytest.mark.parametrize("seed", range(5))
def test_what_is_advised_would_do(seed):
    predictive, targets = make_classes(400, seed=seed)
    with pytest.raises(DataError, match="Ask for max_error=") as caught:
        decide.abstain(predictive, targets, max_error=0.01)
    advised = float(str(caught.value).split("Ask for max_error=")[1].split()[0])
    assert decide.abstain(predictive, targets, max_error=advised).max_error == advised
