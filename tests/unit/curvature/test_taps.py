"""What is back-propagated for several directions at once is what it is one by one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import smidgen
from smidgen.curvature.taps import tapped
from smidgen.outputs.problem import Problem
from smidgen.weights.blocks import find_blocks


class Model(nn.Module):
    """Does something with the outputs of its last layer."""

    def __init__(self, finish):
        super().__init__()
        self.body, self.head, self.finish = nn.Linear(3, 5), nn.Linear(5, 4), finish

    def forward(self, x):
        return self.finish(self.head(torch.tanh(self.body(x))))


def halve_in_place(out):
    out /= 2
    return out


def halve_unseen(out):
    with torch.no_grad():
        out /= 2
    return out


def double_gradient(out):
    out.register_hook(lambda gradient: 2 * gradient)
    return out


FINISHES = {
    "as it is": (lambda out: out, True),
    "unseen by autograd": (halve_unseen, False),
    "in place": (halve_in_place, False),
    "view": (lambda out: out[:, [1, 0, 2, 3]], False),
    "hook of the gradient": (double_gradient, False),
    "softmax": (lambda out: out.log_softmax(-1), False),
    "again": (lambda out: out + out.flip(0), False),
}


@pytest.mark.parametrize("finish", FINISHES)
@pytest.mark.parametrize("layers", ["head.*", "*"])
@pytest.mark.parametrize("percent", [100, 40])
def test_all_directions_at_once(monkeypatch, finish, layers, percent):
    torch.manual_seed(0)
    how, direct = FINISHES[finish]
    model, x = Model(how), torch.randn(6, 3)
    subset = smidgen.select.sparse_kfac(model, percent=percent)
    subset = subset & smidgen.select.named(model, [layers])
    problem = Problem(model).with_likelihood(smidgen.Categorical(4))
    directions = torch.randn(3, 6, 4)
    with tapped(problem, find_blocks(model, subset)) as taps:
        trace = taps.run(x)
        one_by_one = [trace.deltas(direction, more=True) for direction in directions]
        asked = []
        plain = torch.autograd.grad

        def noting(*args, **kwargs):
            asked.append(True)
            return plain(*args, **kwargs)

        monkeypatch.setattr(torch.autograd, "grad", noting)
        at_once = trace.all_deltas(directions)
    assert bool(asked) != (direct and layers == "head.*")
    for name, deltas in at_once.items():
        assert torch.equal(deltas, torch.stack([each[name] for each in one_by_one]))
    assert at_once.keys() == one_by_one[0].keys()


def test_tokens_are_back_propagated_one_by_one():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), torch.randn(2, 5, 3)
    subset = smidgen.select.named(model, ["1.*"])
    problem = Problem(model).with_likelihood(smidgen.Categorical(2))
    with tapped(problem, find_blocks(model, subset)) as taps:
        trace = taps.run(x)
        directions = torch.randn(2, 10, 2)
        at_once = trace.all_deltas(directions, more=True)["1"]
        wanted = [trace.deltas(direction, more=True)["1"] for direction in directions]
    assert at_once.shape == (2, 2, 5, 2)
    assert torch.equal(at_once, torch.stack(wanted))


class AddsInPlace(nn.Module):
    """Adds to a layer's output in place, as AdaLoRA does: at several positions that is a view."""

    def __init__(self):
        super().__init__()
        self.enter, self.middle, self.leave = (
            nn.Linear(4, 5),
            nn.Linear(5, 5),
            nn.Linear(5, 3),
        )

    def forward(self, x):
        hidden = torch.tanh(self.enter(x))
        found = self.middle(hidden)
        found += hidden
        return self.leave(torch.tanh(found)).mean(1)


def test_an_output_that_is_added_to_in_place_keeps_its_gradient():
    torch.manual_seed(0)
    model, x = AddsInPlace().double(), torch.randn(6, 2, 4).double()
    found = smidgen.verify(model, [(x, torch.tensor([0, 1, 2, 0, 1, 2]))])
    assert found.agrees, str(found)
