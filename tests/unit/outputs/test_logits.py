"""What a model returns: logits where they are certain, one clear refusal where not."""

from __future__ import annotations

import re
from collections import namedtuple

import pytest
import torch
from torch import nn
from transformers import BertForSequenceClassification
from transformers.modeling_outputs import BaseModelOutput

import smidgen
from smidgen.errors import DataError
from smidgen.outputs.logits import find_logits
from tests.support.tiny import bert_config

CLASSES, HIDDEN = 3, 16
HIDDEN_ROWS, LOGITS = torch.zeros(5, HIDDEN), torch.ones(5, CLASSES)


class Returns(nn.Module):
    """Returns what `pack` makes of its hidden activations and logits."""

    def __init__(self, pack) -> None:
        super().__init__()
        self.body, self.head, self.pack = (
            nn.Linear(4, HIDDEN),
            nn.Linear(HIDDEN, CLASSES),
            pack,
        )

    def forward(self, x):
        hidden = torch.tanh(self.body(x))
        return self.pack(hidden, self.head(hidden))


Named = namedtuple("Named", ["hidden", "logits"])

CERTAIN = {
    "a tuple of one": lambda hidden, logits: (logits,),
    "a list of one": lambda hidden, logits: [logits],
    "beside nothing": lambda hidden, logits: (None, logits),
    "beside a tuple": lambda hidden, logits: (logits, (hidden, hidden)),
    "by key": lambda hidden, logits: {"hidden": hidden, "logits": logits},
    "by name": Named,
}
UNCERTAIN = {
    "hidden first": lambda hidden, logits: (hidden, logits),
    "logits first": lambda hidden, logits: (logits, hidden),
    "a list": lambda hidden, logits: [hidden, logits],
    "three": lambda hidden, logits: (logits, None, hidden, logits),
}


@pytest.mark.parametrize("pack", CERTAIN.values(), ids=CERTAIN)
def test_certain_logits_are_found(pack):
    assert find_logits(nn.Identity(), pack(HIDDEN_ROWS, LOGITS)) is LOGITS


@pytest.mark.parametrize("pack", UNCERTAIN.values(), ids=UNCERTAIN)
def test_several_tensors_are_refused_wherever_the_model_runs(pack):
    model = Returns(pack)
    batch = (torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1]))
    subset = smidgen.select.named(model, "head.*")
    said = r"tensors of shapes .*\(5, 16\).*not certain. Pass Problem\(model, forward="
    with pytest.raises(DataError, match=said):
        smidgen.fit.laplace(model, [batch], subset)
    with pytest.raises(DataError, match=said):
        smidgen.fit.laplace(smidgen.Problem(model, smidgen.Categorical(3)), [batch], subset)
    with pytest.raises(DataError, match=said):
        smidgen.verify(model, [batch])


def test_a_forward_says_which_and_then_all_is_as_without_the_tuple():
    model = Returns(UNCERTAIN["hidden first"])
    batch = (torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1]))
    subset = smidgen.select.named(model, "head.*")
    problem = smidgen.Problem(model, forward=lambda model, batch: model(batch[0])[1])
    posterior = smidgen.fit.laplace(problem, [batch], subset)
    assert posterior.likelihood == smidgen.Categorical(CLASSES)
    model.pack = lambda hidden, logits: logits
    assert smidgen.fit.laplace(model, [batch], subset) == posterior


def test_a_hugging_face_model_knows_how_wide_its_logits_are():
    model = BertForSequenceClassification(bert_config(num_labels=CLASSES))
    assert find_logits(model, (HIDDEN_ROWS, LOGITS)) is LOGITS
    assert find_logits(model, (LOGITS, HIDDEN_ROWS, HIDDEN_ROWS)) is LOGITS
    with pytest.raises(DataError, match="not certain"):
        find_logits(model, (LOGITS, LOGITS))
    with pytest.raises(DataError, match="not certain"):
        find_logits(model, (HIDDEN_ROWS, HIDDEN_ROWS))


@pytest.mark.parametrize(
    "returned", [None, {}, {"hidden": HIDDEN_ROWS}, (), (None,), "text"]
)
def test_no_logits_at_all_are_refused(returned):
    with pytest.raises(
        DataError, match=r"return its logits.*Pass Problem\(model, forward="
    ):
        find_logits(nn.Identity(), returned)


def test_a_refusal_names_the_tensors_that_were_returned():
    returned = BaseModelOutput(last_hidden_state=HIDDEN_ROWS)
    shape = str(tuple(HIDDEN_ROWS.shape))
    wanted = re.escape(f"BaseModelOutput with 'last_hidden_state' of shape {shape} and no")
    with pytest.raises(DataError, match=wanted):
        find_logits(nn.Identity(), returned)
