"""Weights that are used outside their layers' calls are noticed, and only those."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import smidgen
from smidgen.errors import SmidgenWarning

USES = {
    "plain": lambda net, hidden: hidden,
    "weight": lambda net, hidden: hidden / net.middle.weight.norm(),
    "unseen": lambda net, hidden: hidden / net.middle.weight.detach().norm(),
    "bias": lambda net, hidden: 2 * (hidden - net.middle.bias) + net.middle.bias,
    "type": lambda net, hidden: hidden.to(net.middle.weight.dtype),
    "shape": lambda net, hidden: hidden / net.middle.weight.shape[0],
    "twice": lambda net, hidden: net.middle(hidden),
}
BOTH_WAYS = ("weight", "unseen", "bias")


class Net(nn.Module):
    def __init__(self, use):
        super().__init__()
        self.use = USES[use]
        self.enter, self.middle, self.leave = (
            nn.Linear(4, 5),
            nn.Linear(5, 5),
            nn.Linear(5, 3),
        )

    def forward(self, x):
        hidden = self.use(self, self.middle(torch.tanh(self.enter(x))))
        return self.leave(torch.tanh(hidden))


def make(use):
    torch.manual_seed(0)
    return Net(use).double(), [
        (torch.randn(6, 4).double(), torch.tensor([0, 1, 2, 0, 1, 2]))
    ]


@pytest.mark.parametrize("use", USES)
def test_a_layer_whose_weights_are_used_past_its_call_stays_deterministic(use, recwarn):
    model, batches = make(use)
    subset = smidgen.select.sparse_kfac(model, percent=100)
    posterior = smidgen.fit.laplace(model, batches, subset, progress=False)
    told = [str(w.message) for w in recwarn if w.category is SmidgenWarning]
    if use in BOTH_WAYS:
        assert set(posterior.operators) == {"enter", "leave"}
        assert told == [
            "1 chosen layers stay deterministic: middle. the model uses weights of 'middle' "
            "outside the layer's call too"
        ]
    else:
        assert set(posterior.operators) == {"enter", "middle", "leave"}
        assert not told
    # What is treated has the exact numbers.
    checks = smidgen.verify(model, batches).checks
    wrong = [check.name for check in checks if not check.agrees]
    assert wrong == (["middle"] if use in BOTH_WAYS else [])
