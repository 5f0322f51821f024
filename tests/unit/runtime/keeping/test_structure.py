"""A structure holds while a model is made of what it was, and holds on to nothing."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from smidgen.runtime.keeping.structure import Structure, find_structure, trust_structure


class Options:
    def __init__(self):
        self.gain, self.names = 1.0, ["a"]


class Model(nn.Module):
    """Has an attribute of every kind."""

    def __init__(self):
        super().__init__()
        self.body, self.act, self.head = nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("shift", torch.zeros(6), persistent=False)
        self.scale, self.steps, self.table = 1.0, [1.0, [2.0]], {"gain": 1.0}
        self.seen, self.options, self.pair = {1}, Options(), ([1], 2)
        self.nothing, self.plain = [], torch.ones(1)
        self.rule = lambda x, *, by=1.0: x * by

    def forward(self, x):
        return self.head(self.act(self.norm(self.body(x))) + self.shift)


def patch_closure(model):
    held = [1.0]
    model.rule = lambda x: x * held[0]
    return held


CHANGES = {
    "attribute": lambda m: setattr(m, "scale", 2.0),
    "equal attribute of another type": lambda m: setattr(m, "scale", 1),
    "new attribute": lambda m: setattr(m, "more", 1),
    "attribute gone": lambda m: delattr(m, "scale"),
    "renamed attribute": lambda m: setattr(m, "steps2", m.__dict__.pop("rule")),
    "list": lambda m: m.steps.append(1.0),
    "inner list": lambda m: m.steps[1].append(1.0),
    "item of a list": lambda m: m.steps.__setitem__(0, 3.0),
    "empty list": lambda m: m.nothing.append(1),
    "dict": lambda m: m.table.update(gain=2.0),
    "set": lambda m: m.seen.add(2),
    "list in a tuple": lambda m: m.pair[0].append(1),
    "object": lambda m: setattr(m.options, "gain", 2.0),
    "list of an object": lambda m: m.options.names.append("b"),
    "dict of an object": lambda m: setattr(m.options, "__dict__", dict(vars(m.options))),
    "default of a function": lambda m: m.rule.__kwdefaults__.update(by=2.0),
    "code of a function": lambda m: setattr(
        m.rule, "__code__", (lambda x, *, by=1.0: x + by).__code__
    ),
    "attribute of a function": lambda m: setattr(m.rule, "note", 1),
    "hook": lambda m: m.head.register_forward_hook(lambda *_: None),
    "pre-hook": lambda m: m.act.register_forward_pre_hook(lambda *_: None),
    "backward hook": lambda m: m.register_full_backward_hook(lambda *_: None),
    "submodule": lambda m: setattr(m, "act", nn.ReLU()),
    "submodule gone": lambda m: delattr(m, "act"),
    "new submodule": lambda m: m.add_module("more", nn.ReLU()),
    "forward": lambda m: setattr(m.act, "forward", torch.relu),
    "class": lambda m: setattr(m.act, "__class__", nn.Sigmoid),
    "attributes": lambda m: setattr(m.act, "__dict__", dict(vars(m.act))),
    "parameter": lambda m: setattr(m.head, "weight", nn.Parameter(torch.ones(2, 6))),
    "data": lambda m: setattr(m.head.weight, "data", m.head.weight.data.clone()),
    "strides": lambda m: setattr(m.shift, "data", m.shift.data[::2]),
    "type": lambda m: m.double(),
    "frozen": lambda m: m.head.weight.requires_grad_(False),
    "tied": lambda m: setattr(m.body, "bias", m.norm.bias),
    "buffer": lambda m: setattr(m, "shift", torch.zeros(6)),
    "tensor": lambda m: setattr(m, "plain", torch.ones(1)),
    "mode": lambda m: m.eval(),
    "parametrized": lambda m: parametrizations.weight_norm(m.head),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(change):
    model = Model()
    structure = find_structure(model)
    assert structure is not None
    assert find_structure(model) is structure
    CHANGES[change](model)
    assert not structure.holds(model)
    assert find_structure(model) is not structure


def test_what_a_closure_holds_is_noticed():
    model = Model()
    held = patch_closure(model)
    structure = find_structure(model)
    assert structure.holds(model)
    held[0] = 2.0
    assert not structure.holds(model)


def test_a_float_that_was_replaced_twice_is_noticed():
    """The second may get the first one's id."""
    model = Model()
    for start in range(50):
        model.scale = start + 0.25
        structure = Structure(model)
        model.scale = start + 0.5
        model.scale = start + 0.75
        assert not structure.holds(model)


def test_weights_may_change_and_the_model_may_run():
    model = Model()
    structure = find_structure(model)
    with torch.no_grad():
        model.head.weight.mul_(2)
        model(torch.randn(4, 3))
    model(torch.randn(4, 3)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert structure.holds(model)


def test_a_hook_that_comes_first_is_noticed():
    model = Model()
    model.act.register_forward_hook(lambda *_: None)
    model.act.register_forward_hook(lambda *_: None)
    structure = find_structure(model)
    assert isinstance(model.act._forward_hooks, OrderedDict)
    model.act._forward_hooks.move_to_end(next(iter(model.act._forward_hooks)))
    assert not structure.holds(model)


def slotted(model):
    class Slotted(nn.Module):
        __slots__ = ("inner",)

    model.more = Slotted()


def own_tensor(model):
    class Own(torch.Tensor):
        pass

    model.plain = torch.ones(1).as_subclass(Own)


class Mapping(dict):
    pass


UNTOLD = {
    "slots": slotted,
    "tensor of its own class": own_tensor,
    "dict of its own class": lambda m: setattr(m, "table", Mapping(gain=1.0)),
    "weak reference": lambda m: setattr(m, "weak", weakref.ref(m.act)),
    "bound method": lambda m: m.act.register_forward_hook(m.forward),
    "closure": lambda m: setattr(m.act, "forward", lambda x: m.steps[0] * x),
    "state hook": lambda m: m.act.register_state_dict_post_hook(lambda *_, m=m: None),
    "object": lambda m: setattr(m, "holder", SimpleNamespace(deep=SimpleNamespace(m=m))),
    "submodule": lambda m: m.act.add_module("parent", m),
    "hook of a weight": lambda m: m.head.weight.register_hook(lambda g: g * m.scale),
}


@pytest.mark.parametrize("kind", UNTOLD)
def test_nothing_is_kept_where_a_change_cannot_be_told_or_the_model_would_be_held(kind):
    model = Model()
    UNTOLD[kind](model)
    assert find_structure(model) is None
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_refusal_is_looked_at_again():
    model = Model()
    weak = model.weak = weakref.ref(model.act)
    assert find_structure(model) is None
    del model.weak
    assert find_structure(model) is None
    assert find_structure(model) is not None
    model.weak = weak
    refusals = [find_structure(model) for _ in range(3)]
    assert refusals == [None] * 3


def test_a_structure_is_gone_with_its_model_and_what_is_kept_with_its_owner():
    model, owner = Model(), Options()
    structure = find_structure(model)
    made = structure.keep(owner, lambda: torch.ones(1))
    assert structure.keep(owner, lambda: torch.zeros(1)) is made
    other = Options()
    assert structure.keep(other, lambda: torch.zeros(1)) is not made
    kept = weakref.ref(made)
    parts = [weakref.ref(each) for each in (model, model.head.weight, structure)]
    gc.collect()
    gc.disable()
    try:
        del owner, made
        assert kept() is None
        # The model first: nothing that is kept may hold it.
        del structure, model
        assert [each() for each in parts] == [None] * 3
    finally:
        gc.enable()


def test_a_model_is_looked_at_once_where_that_is_said():
    model = Model()
    structure = find_structure(model)
    model.scale = 2.0
    with trust_structure(structure):
        assert find_structure(model) is structure
    assert find_structure(model) is not structure
