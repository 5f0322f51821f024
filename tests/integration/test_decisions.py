"""What rules promise, over 200 resplits of real predictions (tests/data/make_decisions.py).

A resplit draws the rows that make a rule; the others are new to it. Over draws of those rows
the rows of a data set are the world, so what is promised can be counted.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from smidgen import decide
from smidgen.errors import PromiseError, TooFewRowsError
from smidgen.evaluate import auroc, automation_rate
from tests.data.decisions import CLASSES, NUMBERS, read_cached
from tests.support.decisions import at_most

RESPLITS = 200
POINT = 0.01


def resplit(rows, calibration, seed=0):
    """Draw rows that make a rule, and those that are left, again and again."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(RESPLITS):
        order = torch.randperm(rows, generator=generator)
        yield order[:calibration], order[calibration:]


@pytest.mark.parametrize("coverage", [0.9, 0.95])
@pytest.mark.parametrize("kind", ["lac", "aps"])
@pytest.mark.parametrize("name", CLASSES)
def test_sets_hold_the_class_within_a_point(name, kind, coverage):
    predictive, targets = read_cached(name)
    held = []
    for made, new in resplit(len(targets), 500):
        rule = decide.sets(
            predictive.take(made),
            targets[made],
            coverage=coverage,
            kind=kind,
            allow_empty=True,
        )
        members = rule.apply(predictive.take(new))
        held.append(float(members.gather(1, targets[new, None]).double().mean()))
    average = sum(held) / RESPLITS
    assert average >= coverage - POINT
    # Two classes tie: the sum of both is one for every row, so no set is between one and two.
    if not (kind == "aps" and predictive.class_count == 2):
        assert average <= coverage + POINT


@pytest.mark.parametrize("kind", ["lac", "aps"])
def test_every_class_is_covered_within_a_point(kind):
    predictive, targets = read_cached("agnews")
    held = torch.zeros(RESPLITS, 4)
    for row, (made, new) in enumerate(resplit(len(targets), 800)):
        rule = decide.sets(
            predictive.take(made), targets[made], kind=kind, by_class=True, allow_empty=True
        )
        inside = rule.apply(predictive.take(new)).gather(1, targets[new, None]).squeeze(1)
        for number in range(4):
            held[row, number] = inside[targets[new] == number].double().mean()
    assert ((held.mean(0) - 0.9).abs() <= POINT).all()


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("coverage", [0.9, 0.95])
@pytest.mark.parametrize("name", NUMBERS)
def test_intervals_hold_the_target_within_a_point(name, coverage, scaled):
    predictive, targets = read_cached(name)
    held = []
    for made, new in resplit(len(targets), len(targets) // 2):
        rule = decide.intervals(
            predictive.take(made), targets[made], coverage=coverage, scaled=scaled
        )
        low, high = rule.apply(predictive.take(new))
        held.append(float(((low <= targets[new]) & (targets[new] <= high)).double().mean()))
    assert abs(sum(held) / RESPLITS - coverage) <= POINT


def read_world(name):
    """The predictions of a data set, its targets, and whether each is right."""
    predictive, targets = read_cached(name)
    # Draws of logits make it: once is enough.
    predictive = replace(predictive, information=predictive.mutual_information)
    return predictive, targets, predictive.predicted == targets


def count_exceeded(world, draws, max_error, score):
    """How often the error of a rule is above what was asked, and how much it automates."""
    predictive, targets, right = world
    exceeded, automated = 0, []
    for made in draws:
        try:
            rule = decide.abstain(
                predictive.take(made),
                targets[made],
                max_error=max_error,
                confidence=0.9,
                score=score,
            )
        except (TooFewRowsError, PromiseError):
            automated.append(0.0)
            continue
        answered = rule.apply(predictive)
        automated.append(float(answered.double().mean()))
        # The true error is that of the world, which is all rows. That of the rows which are left
        # is a measurement of it: by chance it is above the true one as often as below.
        exceeded += bool((~right[answered]).double().mean() > max_error)
    return exceeded / len(automated), sum(automated) / len(automated)


ASKED = [("sst2", 0.1), ("agnews", 0.05), ("agnews", 0.1)]


@pytest.mark.parametrize("score", ["confidence", "mutual_information"])
@pytest.mark.parametrize(("name", "max_error"), ASKED)
def test_the_error_among_answers_exceeds_what_was_asked_in_few_resplits(
    name, max_error, score
):
    world = read_world(name)
    draws = (made for made, _ in resplit(len(world[1]), 800))
    exceeded, automated = count_exceeded(world, draws, max_error, score)
    assert exceeded <= 0.1
    if score == "confidence":
        best = automation_rate(*world[:2], max_error=max_error, draws=1).value
        assert automated > 0.5 * best


@pytest.mark.parametrize(("name", "max_error"), ASKED)
def test_the_error_exceeds_what_was_asked_in_few_independent_draws(name, max_error):
    """Rows may be drawn twice, as the proof has it: without, draws vary less."""
    world, generator = read_world(name), torch.Generator().manual_seed(1)
    rows = len(world[1])
    draws = (torch.randint(rows, (800,), generator=generator) for _ in range(RESPLITS))
    exceeded, _ = count_exceeded(world, draws, max_error, "confidence")
    assert exceeded <= at_most(0.1, RESPLITS)


@pytest.mark.parametrize("name", [*CLASSES, *NUMBERS])
def test_familiar_rows_are_called_strange_as_rarely_as_asked(name):
    predictive, _ = read_cached(name)
    flagged = []
    for made, new in resplit(len(predictive), len(predictive) // 2):
        rule = decide.strange(predictive.take(made), rate=0.05)
        flagged.append(float(rule.apply(predictive.take(new)).double().mean()))
    average = sum(flagged) / RESPLITS
    assert 0.05 - POINT <= average <= at_most(0.05, RESPLITS * len(new))


def test_no_score_tells_two_halves_of_one_data_set_apart():
    """A check of the check."""
    predictive, _ = read_cached("agnews")
    halves = torch.arange(len(predictive)).chunk(2)
    for score in decide.UNCERTAINTY_SCORES:
        inside, outside = (decide.uncertainty(predictive.take(h), score) for h in halves)
        assert abs(auroc(inside, outside) - 0.5) < 0.05
