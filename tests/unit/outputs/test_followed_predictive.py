"""What is kept of the likeliest classes is what a dense predictive has of them."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn

import smidgen
from smidgen.errors import ArgumentError
from smidgen.outputs.followed_predictive import FollowedPredictive
from smidgen.outputs.links import KEPT_CLASSES
from smidgen.outputs.predictive import CategoricalPredictive, concatenate
from tests.support.tolerances import EXACT

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")
CLASSES, TOP, ROWS = 70, 5, 12


def fitted(classes=CLASSES, rows=ROWS):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, classes)).double()
    for parameter in model.parameters():
        parameter.data *= 3
    inputs, targets = torch.randn(rows, 4).double(), torch.randint(classes, (rows,))
    subset = smidgen.select.named(model, ["0.*"])
    posterior = smidgen.fit.laplace(model, [(inputs, targets)], subset, precision=0.3)
    return posterior.with_temperature(1.3), model, (inputs, targets)


def both(top=TOP):
    posterior, model, batch = fitted()
    kept = [
        smidgen.predict(posterior, model, batch, link=smidgen.Link(top=top, keep=keep))
        for keep in ("followed", "all")
    ]
    assert isinstance(kept[0], FollowedPredictive)
    assert isinstance(kept[1], CategoricalPredictive)
    return *kept, batch[1]


@pytest.mark.parametrize("top", [2, TOP, CLASSES])
def test_it_has_the_entries_of_the_dense_one(top):
    sparse, dense, _ = both(top)
    assert torch.equal(sparse.classes, dense.classes)
    for ours, theirs in (
        (sparse.class_log_probs, dense.log_probs.gather(1, dense.classes)),
        (sparse.class_logits, dense.logits.gather(1, dense.classes)),
        (sparse.predicted, dense.predicted),
        (sparse.confidence, dense.confidence),
        (sparse.entropy, dense.entropy),
        (sparse.mutual_information, dense.mutual_information),
        (sparse.logit_variance, dense.logit_variance),
        (sparse.logit_covariance, dense.logit_covariance),
        (sparse.class_probs.sum(-1) + sparse.remaining_prob, torch.ones(ROWS).double()),
    ):
        torch.testing.assert_close(ours, theirs, **EXACT)


def test_any_target_has_its_probability_from_its_logit():
    sparse, dense, targets = both()
    assert not (sparse.classes == targets[:, None]).any(-1).all()
    logits = dense.logits.gather(1, targets[:, None]).squeeze(1)
    expected = dense.log_probs.gather(1, targets[:, None]).squeeze(1)
    torch.testing.assert_close(sparse.log_prob_of(targets, logits), expected, **EXACT)


def test_scores_are_those_of_the_dense_one_or_refused():
    sparse, dense, targets = both()
    followed = dense.classes[torch.arange(ROWS), torch.arange(ROWS) % TOP]
    for score in (
        smidgen.evaluate.nll,
        smidgen.evaluate.brier,
        smidgen.evaluate.correct,
    ):
        torch.testing.assert_close(score(sparse, followed), score(dense, followed), **EXACT)
    for score in (smidgen.evaluate.nll, smidgen.evaluate.brier):
        with pytest.raises(
            ArgumentError,
            match=r"targets must be among the 5 classes that were followed, got \d+ for "
            r"example \d+.*Link\(keep='all'\) for scores",
        ):
            score(sparse, targets)
    assert torch.equal(
        smidgen.evaluate.correct(sparse, targets), smidgen.evaluate.correct(dense, targets)
    )


def test_rows_are_taken_joined_and_listed():
    sparse, _, _ = both()
    assert repr(sparse) == "FollowedPredictive(12 examples, 5 of 70 classes)"
    joined = concatenate([sparse.take([0, 1, 2]), sparse.take(torch.arange(3, ROWS))])
    assert len(joined) == ROWS
    listed = sparse.to_dict()
    assert joined.to_dict() == listed
    assert {len(values) for values in listed.values()} == {ROWS}
    assert listed["classes"][0] == sparse.classes[0].tolist()
    assert "probs" not in listed


@pytest.mark.parametrize("name", ["probs", "log_probs"])
def test_probabilities_of_all_classes_are_refused(name):
    sparse, _, _ = both()
    with pytest.raises(
        ArgumentError, match=f"{name} of all 70 classes were not kept. Use class_{name}"
    ):
        getattr(sparse, name)


def test_it_is_what_a_vocabulary_gets_by_default():
    likelihood = smidgen.Categorical(KEPT_CLASSES)
    assert likelihood.settle_link(smidgen.Link()).keep == "all"
    many = smidgen.Categorical(KEPT_CLASSES + 1)
    assert many.settle_link(smidgen.Link()).keep == "followed"
    assert many.settle_link(smidgen.Link(keep="all")).keep == "all"
    assert many.settle_link(smidgen.Link(top="all")).keep == "all"


def test_what_cannot_be_kept_is_refused():
    with pytest.raises(ArgumentError, match="keep must be one of .*got 'some'"):
        smidgen.Link(keep="some")
    link = smidgen.Link(keep="followed")
    with pytest.raises(ArgumentError, match="where every class is followed, got 'foll"):
        smidgen.Categorical(3).settle_link(link)
    with pytest.raises(ArgumentError, match="keep must be.* for bernoulli outputs"):
        smidgen.Bernoulli(3).settle_link(link)


def test_no_outputs_of_a_vocabulary_outlive_their_batch():
    """Of many batches, what is alive at once stays that of one."""
    classes, rows = KEPT_CLASSES + 100, 4
    posterior, model, _ = fitted(classes, rows)

    def wide():
        gc.collect()
        found = (each for each in gc.get_objects() if type(each) is torch.Tensor)
        return sum(each.numel() > rows * classes / 2 for each in found)

    alive = []

    def batches():
        for _ in range(5):
            alive.append(wide())
            yield torch.randn(rows, 4).double()

    found = smidgen.predict_batches(posterior, model, batches(), progress=False)
    assert isinstance(found, FollowedPredictive)
    assert alive[-1] == alive[1]
    tensors = [each for each in vars(found).values() if isinstance(each, torch.Tensor)]
    assert sum(each.untyped_storage().nbytes() for each in tensors) < 8 * 5 * rows * 200


@pytest.mark.parametrize("name", ["targets", "logits"])
def test_a_target_and_a_logit_for_each_example(name):
    sparse, _, targets = both()
    wrong = {"targets": targets, "logits": torch.zeros(ROWS), name: torch.zeros(3)}
    with pytest.raises(ArgumentError, match=rf"{name} must have shape \({ROWS},\)"):
        sparse.log_prob_of(**wrong)
