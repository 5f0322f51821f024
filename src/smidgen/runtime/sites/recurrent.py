"""torch's recurrent layers and cells through their sites: each time step uses the same matrices.

Inputs go to the gates at once, states step after step. Sequences of several lengths are padded;
where one has ended its state stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from smidgen.runtime.sites.site import Rewrite, Site, has_own_forward

CELLS = (nn.LSTMCell, nn.GRUCell, nn.RNNCell)
"""One step alone."""
_LAYERS = (nn.LSTM, nn.GRU, nn.RNN)
_State = tuple[Tensor, ...]


def name_recurrent(module: nn.Module) -> dict[str, tuple[str, str | None]]:
    """Names of a recurrent module's weights and biases by site; none if it runs in another way."""
    plain = next((kind for kind in _LAYERS + CELLS if isinstance(module, kind)), None)
    if plain is None or has_own_forward(module, plain):
        return {}
    own, names = module._parameters, {}
    for weight in [name for name in own if name.startswith("weight_")]:
        site = weight.removeprefix("weight_")
        bias = f"bias_{site}"
        names[site] = weight, bias if own.get(bias) is not None else None
    return names if len(own) == len(vars(module).get("_flat_weights_names", own)) else {}


def _open(module: nn.Module) -> dict[str, Site]:
    return {site: Site(module, *names) for site, names in name_recurrent(module).items()}


def _run(
    module: nn.Module,
    sites: Mapping[str, Site],
    input: Tensor | PackedSequence,
    hx: Any = None,
) -> Any:
    """Run as the module does: a cell once, a layer over whole sequences."""
    if isinstance(module, nn.RNNBase):
        return _run_layers(module, sites, input, hx)
    assert isinstance(input, Tensor)
    assert isinstance(module, nn.RNNCellBase)
    single = input.dim() == 1
    x = input[None] if single else input
    zero = x.new_zeros(len(x), module.hidden_size)
    given = hx if isinstance(hx, tuple) else (zero if hx is None else hx,)
    state = tuple(each[None] if each.dim() == 1 else each for each in given)
    mode = type(module).__name__ if not isinstance(module, nn.RNNCell) else "RNN_TANH"
    if isinstance(module, nn.RNNCell) and module.nonlinearity == "relu":
        mode = "RNN_RELU"
    if isinstance(module, nn.LSTMCell) and hx is None:
        state = (zero, zero)
    mode = mode.removesuffix("Cell")
    state = _step(mode, sites["ih"](x), sites["hh"](state[0]), state)
    made = tuple(each[0] if single else each for each in state)
    return made if isinstance(module, nn.LSTMCell) else made[0]


def _run_layers(
    module: nn.RNNBase, sites: Mapping[str, Site], input: Tensor | PackedSequence, hx: Any
) -> Any:
    x, lengths, single = _as_examples(module, input)
    ways = 2 if module.bidirectional else 1
    states = _first_states(module, x, hx, single)
    ends: list[_State] = []
    for layer in range(module.num_layers):
        made = []
        for way in range(ways):
            suffix = f"l{layer}" + ("_reverse" if way else "")
            first = tuple(each[layer * ways + way] for each in states)
            outputs, last = _run_way(module, sites, suffix, x, lengths, first)
            made.append(outputs)
            ends.append(last)
        x = torch.cat(made, -1)
        if layer + 1 < module.num_layers:
            x = dropout(x, module.dropout, module.training)
    finals = [torch.stack(each) for each in zip(*ends, strict=True)]
    if single:
        finals = [each[:, 0] for each in finals]
    hidden = tuple(finals) if module.mode == "LSTM" else finals[0]
    if isinstance(input, PackedSequence):
        return _pack(x, input, lengths), hidden
    if single:
        return x[0], hidden
    return x if module.batch_first else x.transpose(0, 1), hidden


def _as_examples(
    module: nn.RNNBase, input: Tensor | PackedSequence
) -> tuple[Tensor, Tensor | None, bool]:
    """Inputs with the examples first, (B, T, m), their lengths, and whether there is but one."""
    if isinstance(input, PackedSequence):
        x, lengths = pad_packed_sequence(input, batch_first=True)
        return x, lengths.to(x.device), False
    if input.dim() == 2:
        return input[None], None, True
    return input if module.batch_first else input.transpose(0, 1), None, False


def _first_states(module: nn.RNNBase, x: Tensor, hx: Any, single: bool) -> _State:
    if hx is None:
        count = module.num_layers * (2 if module.bidirectional else 1)
        zero = x.new_zeros(count, len(x), module.hidden_size)
        hidden = zero[..., : module.proj_size] if module.proj_size else zero
        return (hidden, zero) if module.mode == "LSTM" else (zero,)
    given = hx if isinstance(hx, tuple) else (hx,)
    return tuple(each[:, None] if single else each for each in given)


def _run_way(
    module: nn.RNNBase,
    sites: Mapping[str, Site],
    suffix: str,
    x: Tensor,
    lengths: Tensor | None,
    state: _State,
) -> tuple[Tensor, _State]:
    """One layer in one direction: outputs (B, T, d), and the state at the end."""
    gates = sites[f"ih_{suffix}"](x)
    steps = range(x.shape[1])
    made: dict[int, Tensor] = {}
    for step in reversed(steps) if suffix.endswith("_reverse") else steps:
        hidden = sites[f"hh_{suffix}"](state[0])
        after = _step(module.mode, gates[:, step], hidden, state)
        if module.proj_size:
            after = (sites[f"hr_{suffix}"](after[0]), *after[1:])
        made[step] = after[0]
        if lengths is not None:
            runs = (step < lengths)[:, None]
            made[step] = after[0] * runs
            pairs = zip(after, state, strict=True)
            after = tuple(torch.where(runs, new, old) for new, old in pairs)
        state = after
    return torch.stack([made[step] for step in steps], 1), state


def _step(mode: str, of_input: Tensor, of_state: Tensor, state: _State) -> _State:
    """One step, from both sides of the gates (B, gates · d)."""
    if mode == "LSTM":
        enter, forget, cell, leave = (of_input + of_state).chunk(4, -1)
        cells = forget.sigmoid() * state[1] + enter.sigmoid() * cell.tanh()
        return leave.sigmoid() * cells.tanh(), cells
    if mode == "GRU":
        pairs = zip(of_input.chunk(3, -1), of_state.chunk(3, -1), strict=True)
        (reset, own_reset), (keep, own_keep), (new, own_new) = pairs
        update = (keep + own_keep).sigmoid()
        made = (new + (reset + own_reset).sigmoid() * own_new).tanh()
        return ((1 - update) * made + update * state[0],)
    gates = of_input + of_state
    return (gates.relu() if mode == "RNN_RELU" else gates.tanh(),)


def _pack(x: Tensor, like: PackedSequence, lengths: Tensor | None) -> PackedSequence:
    """Pack outputs (B, T, d) as the inputs were."""
    assert lengths is not None
    if like.sorted_indices is not None:
        x, lengths = x[like.sorted_indices], lengths[like.sorted_indices]
    packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True)
    return PackedSequence(
        packed.data, like.batch_sizes, like.sorted_indices, like.unsorted_indices
    )


RECURRENT_REWRITE = Rewrite(lambda module: bool(name_recurrent(module)), _open, _run)
"""torch's LSTM, GRU and RNN, and their cells."""
