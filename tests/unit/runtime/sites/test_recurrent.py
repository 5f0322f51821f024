"""Recurrent layers through their sites are torch's own: ways, layers, packed sequences."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import smidgen
from smidgen.runtime.guard import set_modes
from smidgen.runtime.shadow import shadow_model
from smidgen.runtime.sites.site import find_site
from tests.support.tolerances import EXACT

KINDS = {
    "lstm": (nn.LSTM, {}),
    "projected": (nn.LSTM, {"proj_size": 2}),
    "gru": (nn.GRU, {}),
    "rnn": (nn.RNN, {}),
    "rectified": (nn.RNN, {"nonlinearity": "relu"}),
}


def hooked(model, path):
    shadow, runs = shadow_model(model), []
    set_modes(shadow)
    find_site(shadow, path).register_forward_hook(lambda *_: runs.append(True))
    return shadow, runs


def assert_same(ours, plain):
    if isinstance(plain, PackedSequence | tuple):
        for one, other in zip(ours, plain, strict=True):
            assert_same(one, other)
    elif plain is not None:
        torch.testing.assert_close(ours, plain, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("form", ["first", "second", "one", "sorted", "unsorted"])
def test_a_layer_is_torchs_own(kind, layers, both, form):
    torch.manual_seed(0)
    make, more = KINDS[kind]
    first = form != "second"
    model = make(4, 5, layers, batch_first=first, bidirectional=both, **more).double()
    shadow, runs = hooked(model, "hh_l0")
    x = torch.randn(3, 6, 4, dtype=torch.float64)
    shape = (layers * (1 + both), 3)
    hidden = torch.randn(*shape, more.get("proj_size", 5), dtype=torch.float64)
    cells = torch.randn(*shape, 5, dtype=torch.float64)
    if form == "one":
        x, hidden, cells = x[0], hidden[:, 0], cells[:, 0]
    if form == "second":
        x = x.transpose(0, 1)
    if form in ("sorted", "unsorted"):
        lengths = torch.tensor([6, 4, 1] if form == "sorted" else [2, 6, 3])
        x = pack_padded_sequence(x, lengths, True, enforce_sorted=form == "sorted")
    start = (hidden, cells) if make is nn.LSTM else hidden
    with torch.no_grad():
        for inputs in ((x,), (x, start)):
            assert_same(shadow(*inputs), model(*inputs))
    assert len(runs) == 2 * 6  # each of six steps calls it


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("axes", [1, 2])
def test_a_cell_is_torchs_own(kind, axes):
    model = kind(4, 5).double()
    shadow, runs = hooked(model, "ih")
    x, state = (torch.randn((3, d)[2 - axes :], dtype=torch.float64) for d in (4, 5))
    start = (state, state.cos()) if kind is nn.LSTMCell else state
    with torch.no_grad():
        for inputs in ((x,), (x, start)):
            assert_same(shadow(*inputs), model(*inputs))
    assert len(runs) == 2


def test_one_with_a_forward_of_its_own_is_left_out():
    own = type(
        "Own", (nn.LSTM,), {"forward": lambda self, x: super(nn.LSTM, self).forward(x)}
    )
    found = smidgen.coverage(nn.Sequential(own(3, 4), nn.LSTM(3, 4)))
    assert [layer.name for layer in found.layers] == ["1.ih_l0", "1.hh_l0"]
    assert found.left_out == {"0": "Own is not an affine layer"}
