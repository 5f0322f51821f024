"""The graph of a tapped pass starts at the taps, whatever below them needs a gradient."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import smidgen
from smidgen.errors import StructureError
from tests.support.tolerances import EXACT

INPUTS = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
BATCH = (INPUTS, torch.tensor([0, 1, 2, 0, 1, 2]))


class Towers(nn.Module):
    """Two towers of which one sees inputs that need a gradient, and a head."""

    def __init__(self, state):
        super().__init__()
        self.state = state
        self.plain = nn.Linear(4, 3)
        self.left = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh())
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.plain(x)) * self.run_left(x))

    def run_left(self, x):
        if self.state == "needs gradients":
            return self.left(x.clone().requires_grad_())
        if self.state == "not reentrant":
            return checkpoint(self.left, x, use_reentrant=False)
        if self.state == "reentrant":
            return checkpoint(self.left, x.clone().requires_grad_(), use_reentrant=True)
        return self.left(x)


def towers(state):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Towers(state).double().eval()


def fit_and_predict(model, structure):
    subset = smidgen.select.sparse_kfac(model, percent=60)
    posterior = smidgen.fit.laplace(
        model, [BATCH], subset, structure=structure, progress=False
    )
    return smidgen.predict(posterior, model, BATCH).probs


@pytest.mark.parametrize("structure", ["kron", "diag", "ekfac"])
@pytest.mark.parametrize("state", ["needs gradients", "not reentrant"])
def test_what_lies_below_the_taps_changes_no_number(state, structure):
    ours = fit_and_predict(towers(state), structure)
    torch.testing.assert_close(ours, fit_and_predict(towers("plain"), structure), **EXACT)


@pytest.mark.parametrize("state", ["needs gradients", "not reentrant"])
def test_the_exact_jacobian_agrees(state):
    assert smidgen.verify(towers(state), [BATCH]).agrees


def test_a_graph_of_the_callers_is_not_used_up():
    model = towers("plain")
    factor = nn.Parameter(torch.ones(1, dtype=torch.float64))
    model.scale = torch.exp(factor)  # made by the caller, with a graph of its own
    hook = model.left.register_forward_pre_hook(lambda m, args: (args[0] * model.scale,))
    fit_and_predict(model, "kron")
    hook.remove()
    model.scale.sum().backward()
    assert factor.grad is not None


def test_a_layer_in_a_reentrant_checkpoint_is_refused():
    with pytest.raises(StructureError, match=r"'left\.0'.*Pass use_reentrant=False"):
        fit_and_predict(towers("reentrant"), "kron")


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
def test_a_reentrant_checkpoint_above_the_chosen_layers_is_refused():
    class Above(nn.Module):
        def __init__(self):
            super().__init__()
            self.low, self.high = nn.Linear(4, 5), nn.Linear(5, 5)
            self.head = nn.Linear(5, 3)

        def forward(self, x):
            return self.head(checkpoint(self.high, self.low(x).tanh(), use_reentrant=True))

    model = Above().double().eval()
    subset = smidgen.select.named(model, ["low*"])
    with pytest.raises(StructureError, match=r"use_reentrant=True.*use_reentrant=False"):
        smidgen.fit.laplace(model, [BATCH], subset, progress=False)
