"""Batches of every form are read where that is certain, and refused in a sentence where not."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import smidgen
from smidgen.errors import DataError
from smidgen.outputs.batches import batch_mask, batch_targets, find_inputs, move_batch

GENERATOR = torch.Generator().manual_seed(2)
FIRST, SECOND = (
    torch.randn(6, 3, dtype=torch.float64, generator=GENERATOR) for _ in range(2)
)
LABELS = torch.tensor([0, 1, 2, 2, 1, 0])


class Two(nn.Module):
    """Takes two inputs, by these names."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, first, second):
        return self.head(torch.tanh(self.body(torch.cat([first, second], -1))))


class Pair(Two):
    """Takes both in one argument."""

    def forward(self, pair):
        return super().forward(*pair)


class Whole(Two):
    """Takes all of a batch."""

    def forward(self, batch):
        return super().forward(batch.first, batch.second)


class Open(Two):
    """May take both in one argument, or one after another: its signature does not tell."""

    def forward(self, first, second=None):
        return super().forward(first, second)


@dataclass(frozen=True)
class Fields:
    first: Tensor
    second: Tensor
    labels: Tensor | None = None


Names = namedtuple("Names", ["labels", "first", "second"])  # in an order of its own
Tokens = namedtuple("Tokens", ["input_ids", "attention_mask"])
Plain = namedtuple("Plain", ["x", "y"])

FORMS = {
    "mapping": (Two, {"first": FIRST, "second": SECOND, "labels": LABELS}),
    "pair of tuples": (Two, ((FIRST, SECOND), LABELS)),
    "pair of lists": (Two, [[FIRST, SECOND], LABELS]),
    "one argument": (Pair, ((FIRST, SECOND), LABELS)),
    "dataclass": (Two, Fields(FIRST, SECOND, LABELS)),
    "dataclass as it is": (Whole, Fields(FIRST, SECOND, LABELS)),
    "named tuple": (Two, Names(LABELS, FIRST, SECOND)),
    "one name": (Pair, {"whatever": (FIRST, SECOND), "labels": LABELS}),
}


def fit_and_predict(kind, batch):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind().double()
    subset = smidgen.select.sparse_kfac(model, percent=60)
    posterior = smidgen.fit.laplace(model, [batch], subset, progress=False)
    calibrated = smidgen.calibrate(posterior, model, [batch], progress=False)
    probs = [smidgen.predict(calibrated, model, batch, samples=n).probs for n in (None, 3)]
    return torch.stack(probs), calibrated


@pytest.mark.filterwarnings("ignore::smidgen.SmidgenWarning")
@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_numbers_of_a_mapping(form):
    probs, posterior = fit_and_predict(*FORMS[form])
    expected, other = fit_and_predict(*FORMS["mapping"])
    assert torch.equal(probs, expected)
    # The targets were the same, too.
    assert posterior.calibration == other.calibration


REFUSED = {
    "three items": (Two, (FIRST, SECOND, LABELS), r"got 3 items.*model\(\*batch\[:-1\]\)"),
    "too few inputs": (
        Two,
        (FIRST, LABELS),
        "missing a required argument|missing 1 required",
    ),
    "two inputs, no targets": (
        Two,
        (FIRST, SECOND),
        r"Pass smidgen\.Problem\(model, forward=",
    ),
    "an open signature": (Open, ((FIRST, SECOND), LABELS), r"Problem\(model, forward="),
    "a name too many": (
        Two,
        {"first": FIRST, "second": SECOND, "third": FIRST, "labels": LABELS},
        r"unexpected keyword argument 'third'.*Problem\(model, forward=",
    ),
    "other fields": (Pair, Fields(FIRST, SECOND, LABELS), r"Problem\(model, forward="),
}


@pytest.mark.parametrize("form", REFUSED)
def test_what_is_not_certain_is_refused(form):
    kind, batch, message = REFUSED[form]
    with pytest.raises(DataError, match=message):
        fit_and_predict(kind, batch)


def test_an_error_of_the_models_own_is_not_rewritten():
    class Broken(Two):
        def forward(self, first, second):
            return first.no_such_thing

    with pytest.raises(AttributeError, match="no_such_thing"):
        fit_and_predict(Broken, FORMS["mapping"][1])


def test_several_items_need_targets_beside_a_forward():
    model = Two().double()
    batch = (FIRST, SECOND, LABELS)
    subset = smidgen.select.sparse_kfac(model, percent=60)
    unsure = smidgen.Problem(model, forward=lambda model, batch: model(*batch[:2]))
    with pytest.raises(DataError, match=r"targets=lambda batch: batch\[-1\]"):
        smidgen.fit.laplace(unsure, [batch], subset, progress=False)
    sure = smidgen.Problem(model, forward=unsure.forward, targets=lambda batch: batch[-1])
    posterior = smidgen.fit.laplace(sure, [batch], subset, progress=False)
    mapping = FORMS["mapping"][1]
    assert posterior == smidgen.fit.laplace(model, [mapping], subset, progress=False)


def test_named_tuples_are_read_by_name_only_if_we_know_one():
    mask = torch.ones(2, 3)
    tokens = Tokens(torch.ones(2, 3), mask)
    assert find_inputs(tokens).keys() == {"input_ids", "attention_mask"}
    assert batch_targets(tokens) is None
    assert torch.equal(batch_mask(tokens), mask.bool())
    plain = Plain(FIRST, LABELS)
    assert find_inputs(plain) is FIRST
    assert torch.equal(batch_targets(plain), LABELS)


def test_a_dataclass_is_moved_without_a_change_to_it():
    batch = Fields(FIRST, SECOND, None)
    moved = move_batch(batch, torch.device("meta"))
    assert moved.first.is_meta
    assert moved.labels is None
    assert batch.first is FIRST


def test_inputs_of_a_dataclass_must_be_finite():
    batch = Fields(FIRST.clone(), SECOND, LABELS)
    batch.first[3, 0] = torch.nan
    with pytest.raises(DataError, match="at row 3 of 'first'"):
        fit_and_predict(Two, batch)
