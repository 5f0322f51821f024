"""Which rows to label: the most informative, drawn in proportion, or by chance."""

from __future__ import annotations

import pytest
import torch

from smidgen import decide
from smidgen.errors import ArgumentError
from tests.support.decisions import make_classes, make_numbers


@pytest.mark.parametrize("by", ["information", "entropy"])
def test_the_rows_of_the_highest_scores_come_first(by):
    predictive, _ = make_classes(200, with_variance=True)
    values = {
        "information": predictive.mutual_information,
        "entropy": predictive.entropy,
    }[by]
    chosen = decide.acquire(predictive, 20, by=by)
    assert chosen.tolist() == values.argsort(descending=True)[:20].tolist()


@pytest.mark.parametrize(
    "settings", [{"by": "random"}, {"diverse": True}, {"by": "entropy", "diverse": True}]
)
def test_what_is_random_follows_the_seed(settings):
    predictive, _ = make_classes(200, with_variance=True)
    state = torch.get_rng_state()
    first = decide.acquire(predictive, 30, seed=1, **settings)
    assert first.equal(decide.acquire(predictive, 30, seed=1, **settings))
    assert not first.equal(decide.acquire(predictive, 30, seed=2, **settings))
    assert len(first.unique()) == 30
    assert torch.equal(state, torch.get_rng_state())


def test_a_diverse_batch_is_drawn_in_proportion_to_the_scores():
    """The first row of a batch is row i with probability score_i / Σ score."""
    predictive, _ = make_classes(8, with_variance=True)
    scores, draws = predictive.mutual_information, 4000
    first = torch.tensor(
        [int(decide.acquire(predictive, 1, diverse=True, seed=s)) for s in range(draws)]
    )
    expected = scores / scores.sum()
    counted = torch.bincount(first, minlength=8) / draws
    deviation = (expected * (1 - expected) / draws).sqrt()
    assert ((counted - expected).abs() < 4 * deviation).all()


def test_a_diverse_batch_holds_fewer_copies_of_one_doubt():
    """A tenth of the pool are copies of its most informative row."""
    predictive, _ = make_classes(300, with_variance=True)
    best = int(predictive.mutual_information.argmax())
    pool = predictive.take([best] * 30 + list(range(300)))
    copies = set(range(30)) | {30 + best}
    ranked = decide.acquire(pool, 20)
    drawn = decide.acquire(pool, 20, diverse=True)
    assert len(copies & set(ranked.tolist())) == 20
    assert len(copies & set(drawn.tolist())) < 12


def test_a_regression_has_rows_worth_labelling():
    predictive, _ = make_numbers(100)
    chosen = decide.acquire(predictive, 3)
    assert chosen.tolist() == predictive.mutual_information.topk(3).indices.tolist()
    assert len(decide.acquire(predictive, 5, diverse=True)) == 5
    with pytest.raises(
        ArgumentError, match="may be below zero there. Use by='information'"
    ):
        decide.acquire(predictive, 5, diverse=True, by="entropy")


def test_what_does_not_suit_is_refused():
    predictive, _ = make_classes(10, with_variance=True)
    for count in (0, 11, 2.0):
        with pytest.raises(
            ArgumentError, match="count must be a whole number from 1 to 10"
        ):
            decide.acquire(predictive, count)
    with pytest.raises(
        ArgumentError, match="by must be 'information', 'entropy' or 'random'"
    ):
        decide.acquire(predictive, 2, by="bald")
    with pytest.raises(ArgumentError, match="needs uncertain weights"):
        decide.acquire(make_classes(10)[0], 2)
