"""BayesTune's choice: fraction, threshold, elbow, and the head beside the budget."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from smidgen import fit, select
from smidgen.errors import ArgumentError
from smidgen.weights.subset import Whole


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.LayerNorm(30), nn.Linear(30, 2))


def scores(model, names=("0.weight", "0.bias")):
    generator = torch.Generator().manual_seed(1)
    shapes = {name: p.shape for name, p in model.named_parameters()}
    return {name: torch.rand(shapes[name], generator=generator) for name in names}


def test_the_head_is_whole_and_outside_the_budget():
    model = net()
    found = select.bayestune(model, scores(model), fraction=0.1)
    assert found.parts["2.weight"] == found.parts["2.bias"] == Whole()
    assert found.size == 63 + 62
    alone = select.bayestune(model, scores(model), fraction=0.1, head="none")
    assert alone.size == 63
    assert alone | select.last_layer(model) == found
    # Scores of the head change nothing.
    more = scores(model, ("0.weight", "0.bias", "2.weight"))
    assert select.bayestune(model, more, fraction=0.1) == found


class Tied(nn.Module):
    """The outputs come from a layer that shares the embedding's weights."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.hidden = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, ids):
        return self.out(self.norm(torch.tanh(self.hidden(self.embed(ids)))))


def test_a_pretrained_map_is_not_taken_for_a_head():
    model = Tied()
    given = {"hidden.weight": torch.rand(4, 4)}
    said = "'out' comes after the last affine layer 'hidden'.*tied to embed"
    with pytest.raises(ArgumentError, match=said):
        select.bayestune(model, given)
    ids = [(torch.tensor([1, 2]), torch.tensor([1, 2]))]
    said = "'out' makes the outputs and cannot be chosen .*tied to embed"
    with pytest.raises(ArgumentError, match=said):
        select.bayestune(model, given, batches=ids)
    with pytest.raises(ArgumentError, match=said):
        fit.langevin(model, ids, settings=fit.LangevinSettings(num_data=2))
    assert select.bayestune(model, given, fraction=0.5, head="none").size == 8
    # What makes no outputs does not count: here a norm is last.
    normed = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2), nn.LayerNorm(2))
    found = select.bayestune(normed, {"0.weight": torch.rand(3, 3)})
    assert "1.weight" in found.parts
    # Tuned whole it is still given as differences, not as new.
    subset = select.named(model, ["hidden.*", "norm.weight"])
    tuned = fit.finetune(
        model, ids, subset, validation=ids, settings=fit.FinetuneSettings(epochs=1)
    )
    assert not tuned.delta.replaced
    other = select.named(net(), "2.*")
    with pytest.raises(ArgumentError, match="head must hold parameters .* '2.bias'"):
        select.bayestune(model, given, head=other)


def test_half_a_percent_is_the_default():
    model = net()
    assert select.bayestune(model, scores(model), head="none").size == 4


def test_a_threshold_takes_all_above_it():
    model = net()
    given = scores(model)
    found = select.bayestune(model, given, threshold=0.9, head="none")
    assert found.size == sum(int((each > 0.9).sum()) for each in given.values())
    assert (given["0.weight"].flatten()[found.indices("0.weight")] > 0.9).all()
    with pytest.raises(ArgumentError, match="threshold must leave a weight, got 2"):
        select.bayestune(model, given, threshold=2)


def test_the_elbow_is_where_the_large_ones_end():
    model = net()
    given = {name: each * 1e-4 + 1e-4 for name, each in scores(model).items()}
    given["0.weight"].view(-1)[:40] = 0.1 + 0.01 * torch.arange(40)
    found = select.bayestune(model, given, elbow=True, head="none")
    assert set(range(40)) <= set(found.indices("0.weight").tolist())
    assert found.size <= 60
    flat = {name: torch.ones_like(each) for name, each in given.items()}
    with pytest.raises(ArgumentError, match="elbow needs positive scores that differ"):
        select.bayestune(model, flat, elbow=True)


def test_norms_and_embeddings_may_be_scored_too():
    model = net()
    found = select.bayestune(model, scores(model, ("0.weight", "1.weight")), fraction=1.0)
    assert found.parts["1.weight"] == Whole()


def test_what_does_not_fit_is_named():
    model = net()
    with pytest.raises(ArgumentError, match="one of fraction, threshold and elbow"):
        select.bayestune(model, scores(model), fraction=0.1, elbow=True)
    with pytest.raises(ArgumentError, match="got '0.weight' of shape"):
        select.bayestune(model, {"0.weight": torch.ones(3)})
    with pytest.raises(ArgumentError, match="at least one parameter outside the head"):
        select.bayestune(model, scores(model, ("2.weight",)))
    bad = scores(model)
    bad["0.bias"][3] = torch.nan
    with pytest.raises(ArgumentError, match="NaN for '0.bias'"):
        select.bayestune(model, bad)
    with pytest.raises(ArgumentError, match="head must be .* got 'first'"):
        select.bayestune(model, scores(model), head="first")
