"""Weights that are used outside their layers' calls are noticed, and only those."""

from __future__ import annotations

from operator import attrgetter

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


MODULES = {
    "attention": lambda: nn.MultiheadAttention(4, 2, batch_first=True),
    "lstm": lambda: nn.LSTM(4, 4, batch_first=True),
    "gru": lambda: nn.GRU(4, 4, batch_first=True),
    "cell": lambda: nn.GRUCell(4, 4),
}
# The module, the weight that is used past it, and the layer that must be left out.
PAST_SITES = [
    ("attention", None, None),
    ("attention", "out_proj.weight", "inside.out_proj"),
    ("attention", "in_proj_weight", "inside.in_proj"),
    ("attention", "in_proj_bias", "inside.in_proj"),
    ("lstm", None, None),
    ("lstm", "weight_hh_l0", "inside.hh_l0"),
    ("lstm", "bias_ih_l0", "inside.ih_l0"),
    ("gru", None, None),
    ("gru", "weight_ih_l0", "inside.ih_l0"),
    ("cell", None, None),
    ("cell", "weight_hh", "inside.hh"),
]


class Sited(nn.Module):
    """Matrices that are multiplied with without a call of a layer."""

    def __init__(self, kind, past):
        super().__init__()
        self.kind, self.past = kind, past
        self.inside, self.leave = MODULES[kind](), nn.Linear(4, 3)

    def forward(self, x):
        if self.kind == "cell":
            hidden = self.inside(x[:, 1], self.inside(x[:, 0]))
        else:
            hidden = self.inside(*[x] * (3 if self.kind == "attention" else 1))[0][:, -1]
        if self.past is not None:
            hidden = hidden * attrgetter(self.past)(self.inside).norm()
        return self.leave(hidden)


@pytest.mark.parametrize(("kind", "past", "left_out"), PAST_SITES)
def test_so_it_is_where_a_layer_is_a_matrix_of_another_module(
    kind, past, left_out, recwarn
):
    torch.manual_seed(0)
    model = Sited(kind, past).double()
    for bias in (each for name, each in model.named_parameters() if "bias" in name):
        # Attention starts with none, and the norm of zero has no derivative.
        nn.init.normal_(bias)
    batches = [(torch.randn(6, 3, 4).double(), torch.tensor([0, 1, 2, 0, 1, 2]))]
    layers = {layer.name for layer in smidgen.coverage(model).layers}
    subset = smidgen.select.sparse_kfac(model, percent=100)
    posterior = smidgen.fit.laplace(model, batches, subset, progress=False)
    assert set(posterior.operators) == layers - {left_out}
    told = [str(w.message) for w in recwarn if w.category is SmidgenWarning]
    assert told == [
        f"1 chosen layers stay deterministic: {name}. the model uses weights of {name!r} "
        "outside the layer's call too"
        for name in [left_out]
        if name is not None
    ]
    # What is treated has the exact numbers, and nothing else is left out.
    checks = smidgen.verify(model, batches).checks
    assert {check.name for check in checks if not check.agrees} == {left_out} - {None}
