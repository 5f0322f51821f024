"""A shadow computes what its model computes, and nothing done to it reaches the model."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from copy import deepcopy
from functools import lru_cache, partial, update_wrapper
from types import MappingProxyType, SimpleNamespace
from weakref import WeakValueDictionary

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, spectral_norm, weight_norm

import smidgen
from smidgen.errors import DataError, StructureError
from smidgen.outputs.problem import Problem, model_outputs
from smidgen.runtime.guard import set_modes
from smidgen.runtime.keeping.swap import swap_tensors
from smidgen.runtime.shadow import is_shadow, shadow_model

OLD_PARTS_ARE_FINE = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning"
)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def evaluating(model):
    shadow = shadow_model(model)
    set_modes(shadow)
    return shadow


def small():
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 2))


def zeros(model):
    return {name: torch.zeros_like(p) for name, p in model.named_parameters()}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_modes_hooks_weights_and_forwards_of_a_shadow_are_its_own(case, unchanged):
    model, batch = case.make()
    model.train()
    with unchanged(model), torch.no_grad():
        shadow = evaluating(model)
        plain = model_outputs(shadow, batch)
        for module in shadow.modules():
            module.register_forward_hook(lambda *_: None)
            module.forward = module.forward
        with swap_tensors(shadow, zeros(model)):
            assert not torch.equal(model_outputs(shadow, batch), plain)
        assert torch.equal(model_outputs(shadow, batch), plain)
    with torch.no_grad():
        # torch's fused layers round in another way.
        torch.testing.assert_close(model_outputs(model.eval(), batch), plain)
    assert is_shadow(shadow)
    assert not is_shadow(model)


def test_it_shares_the_weights_and_gives_them_no_gradient():
    model = small()
    shadow = shadow_model(model)
    assert not shadow(torch.randn(2, 3)).requires_grad
    for name, parameter in model.named_parameters():
        own = shadow.get_parameter(name)
        assert own.data_ptr() == parameter.data_ptr()
        assert not own.requires_grad
    # Quantised weights would lose their state: what needs no gradient is the same object.
    model[0].weight.requires_grad_(False)
    assert shadow_model(model)[0].weight is model[0].weight
    assert list(shadow_model(model).state_dict()) == list(model.state_dict())


def test_shared_modules_and_tied_weights_stay_shared():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = self.again = nn.Linear(3, 3)
            self.other = nn.Linear(3, 3)
            self.other.weight = self.first.weight

        def forward(self, x):
            return self.other(self.again(self.first(x)))

    model, x = Tied(), torch.randn(2, 3)
    shadow = shadow_model(model)
    assert shadow.first is shadow.again
    assert shadow.first is not model.first
    assert shadow.other.weight is shadow.first.weight
    with swap_tensors(shadow, {"first.weight": torch.zeros(3, 3)}):
        assert torch.equal(shadow(x), shadow.other.bias.expand(2, 3))
    assert torch.equal(shadow(x), model(x))


class Holder:
    """Not a module, and holds one."""

    def __init__(self, module):
        self.module = module

    def run(self, x):
        return self.module(x)


def bound(model):
    model[0].forward = model[0].forward


def as_accelerate_leaves_it(model):
    def run(module, *args):
        return module._old_forward(*args)

    module = model[0]
    module._old_forward = module.forward
    module.forward = update_wrapper(partial(run, module), module._old_forward)


def closed_over(model):
    inner, plain = model[0], model[0].forward
    model[0].forward = lambda x: plain(x) if inner.training else plain(x)


def by_default_argument(model):
    def run(x, *, plain=model[0].forward):
        return plain(x)

    model[0].forward = run


def in_containers(model):
    first, tail = model[0], (nn.Identity(), {"last": [model[3]]})
    model.parts = first, tail
    model.forward = lambda x: model.parts[1][1]["last"][0](
        model[2](model[1](model.parts[0](x)))
    )


def weakly(model):
    model.head = weakref.ref(model[3])
    model.forward = lambda x: model.head()(model[2](model[1](model[0](x))))


def by_proxy(model):
    model.head = (weakref.proxy(model[3]),)
    model.forward = lambda x: model.head[0](model[2](model[1](model[0](x))))


def in_an_object(model):
    model.holder = Holder(model[3])
    model.forward = lambda x: model.holder.run(model[2](model[1](model[0](x))))


PATCHES = [
    bound,
    as_accelerate_leaves_it,
    closed_over,
    by_default_argument,
    in_containers,
    weakly,
    by_proxy,
    in_an_object,
]


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.__name__)
def test_whatever_leads_to_a_module_leads_to_its_shadow(patch):
    """Each layer's hook sees the pass, and new weights change it."""
    model, x = small(), torch.randn(2, 3)
    plain = model.eval()(x).detach()
    patch(model.train())
    shadow, ran = evaluating(model), []
    for module in shadow:
        module.register_forward_hook(lambda module, *_: ran.append(module))
    assert torch.equal(shadow(x), plain)
    assert ran == list(shadow)
    with swap_tensors(shadow, zeros(model)):
        assert not shadow(x).any()
    assert all(module.training for module in model)


def test_what_holds_no_module_is_the_same_object():
    model = small()
    model.config, model.sizes = Holder(None), (4, (5,))
    shadow = shadow_model(model)
    assert shadow.config is model.config
    assert shadow.sizes is model.sizes


def test_what_a_pass_writes_to_is_the_shadows_own():
    """Lists, dicts and sets are copied once, wherever a module, hook or list leads to them."""

    class Writing(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
            self.kept, self.seen, self.last = {}, set(), deque(maxlen=1)
            self.order = [self.body]
            self.order.append(self.order)
            kept = self.body.kept = self.kept
            self.body.register_forward_hook(lambda *a: kept.update(hidden=a[-1]))

        def forward(self, x):
            self.order[0](x)
            self.seen.add(len(x))
            self.last.append(x)
            return self.head(self.body.kept["hidden"])

    model, x = Writing(), torch.randn(2, 3)
    shadow = shadow_model(model)
    assert torch.equal(shadow(x), shadow.head(shadow.body(x)))
    assert shadow.kept is shadow.body.kept
    assert shadow.order[1] is shadow.order
    assert shadow.order[0] is shadow.body
    assert shadow.seen == {2}
    assert shadow.last.maxlen == 1
    assert not model.kept
    assert not model.seen
    assert not model.last
    assert model.order[0] is model.body


class Mode(nn.MultiheadAttention):
    """Acts in training as no evaluation may."""

    def forward(self, *args, **kwargs):
        outputs, weights = super().forward(*args, **kwargs)
        return outputs * (2 if self.training else 1), weights


class Hooked(nn.MultiheadAttention):
    """Has a hook that looks at its mode."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.register_forward_hook(
            lambda m, _, out: (out[0] * (2 if m.training else 1), None)
        )


@pytest.mark.parametrize("kind", [Mode, Hooked])
def test_attention_runs_unfused_and_in_its_own_mode(kind, monkeypatch):
    model, x = kind(8, 2, batch_first=True), torch.randn(3, 5, 8)
    with torch.no_grad():
        plain = model.eval()(x, x, x)[0]
        shadow = evaluating(model.train())
        set_modes(shadow)
        monkeypatch.setattr(torch, "_native_multi_head_attention", None)
        torch.testing.assert_close(shadow(x, x, x)[0], plain)
        with pytest.raises(TypeError):
            model.eval()(x, x, x)
    assert not shadow.training
    gone = weakref.ref(shadow)
    del shadow
    assert gone() is None


def test_a_modules_own_hooks_run_and_see_the_shadow():
    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
            self.body.register_forward_hook(self.remember)

        def remember(self, module, args, output):
            self.features = output

        def forward(self, x):
            self.body(x)
            return self.head(self.features)

    model, x = Remembering(), torch.randn(2, 3)
    shadow = shadow_model(model)
    assert torch.equal(shadow(x), shadow.head(shadow.body(x)))
    # Nothing assigned in a pass leaks back.
    assert not hasattr(model, "features")


@pytest.mark.parametrize("copied", [False, True])
def test_recurrent_layers_notice_new_weights(copied):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.lstm(x)[0][:, -1])

    model, x = Recurrent(), torch.randn(2, 5, 3)
    if copied:
        # Its layer's weak references lead nowhere.
        model = deepcopy(model)
        gc.collect()
    flat = list(model.lstm._flat_weights)
    shadow = shadow_model(model)
    with torch.no_grad():
        plain = model(x)
        assert torch.equal(shadow(x), plain)
        with swap_tensors(shadow, zeros(model)):
            assert not shadow(x).any()
        assert torch.equal(shadow(x), plain)
    assert all(a is b for a, b in zip(flat, model.lstm._flat_weights, strict=True))


@OLD_PARTS_ARE_FINE
@pytest.mark.parametrize(
    "wrap",
    [
        spectral_norm,
        weight_norm,
        parametrizations.spectral_norm,
        parametrizations.orthogonal,
    ],
    ids=["spectral-norm", "weight-norm", "spectral", "orthogonal"],
)
def test_weights_computed_from_others(wrap, unchanged):
    model, x = nn.Sequential(wrap(nn.Linear(3, 3)), nn.Linear(3, 2)), torch.randn(2, 3)
    with torch.no_grad():
        plain = model.eval()(x)
    model.train()
    shadow = evaluating(model)
    with unchanged(model), torch.no_grad():
        assert torch.equal(shadow(x), plain)
        set_modes(shadow, dropout=True)
        with swap_tensors(shadow, {}):
            shadow(x)
    with torch.no_grad():
        assert torch.equal(model.eval()(x), plain)


def test_a_cache_of_parametrizations_is_refused():
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 2)))
    with (
        parametrize.cached(),
        pytest.raises(StructureError, match="outside torch.nn.utils"),
    ):
        shadow_model(model)


def test_buffers_start_every_pass_as_the_callers_are():
    model, x = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), torch.randn(8, 3)
    shadow = shadow_model(model.train())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(2):
        with swap_tensors(shadow, {}):
            shadow(x)
            assert shadow[1].num_batches_tracked == 1
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)
    set_modes(shadow, dropout=True)
    assert shadow[0].training
    assert not shadow[1].training


class Slotted(nn.Module):
    """Keeps something outside its dictionary, and computes an attribute."""

    __slots__ = ("inner",)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        object.__setattr__(self, "inner", [self.layer])

    @property
    def only(self):
        return self.inner[0]

    def forward(self, x):
        return self.only(x)


def test_slots_and_properties():
    model = Slotted()
    shadow = shadow_model(model)
    assert shadow.only is shadow.layer
    assert shadow.only is not model.layer


def test_a_deep_model():
    model = nn.Linear(2, 2)
    for _ in range(80):
        model = nn.Sequential(model)
    x = torch.randn(2, 2)
    assert torch.equal(shadow_model(model)(x), model(x))


@OLD_PARTS_ARE_FINE
@pytest.mark.parametrize("make", ["script", "trace"])
def test_scripted_modules_get_modes_and_weights_of_their_own(make):
    x = torch.randn(2, 3)
    body = small()
    scripted = (
        torch.jit.script(body) if make == "script" else torch.jit.trace(body.eval(), x)
    )
    model = nn.Sequential(scripted, nn.Linear(2, 2)).train()
    shadow = evaluating(model)
    assert not any(module.training for module in shadow.modules())
    assert all(module.training for module in model.modules())
    with swap_tensors(shadow, zeros(shadow)):
        assert not shadow(x).any()
    if make == "script":
        assert torch.equal(shadow(x), model.eval()(x))


def test_what_was_compiled_runs_as_it_is_written():
    def refuse(graph, inputs):
        raise AssertionError("compiled")

    body = small()
    model = torch.compile(body, backend=refuse)
    in_place = small()
    in_place.compile(backend=refuse)
    x = torch.randn(2, 3)
    assert torch.equal(evaluating(model)(x), body.eval()(x))
    assert torch.equal(evaluating(in_place)(x), evaluating(in_place)(x))
    assert list(shadow_model(model).state_dict()) == list(model.state_dict())
    subset = smidgen.select.last_layer(model)
    batch = (x, torch.tensor([0, 1]))
    posterior = smidgen.fit.laplace(model, [batch], subset)
    assert (smidgen.predict(posterior, model, x).logit_covariance != 0).any()


def test_a_shadow_is_gone_with_its_last_reference():
    """No cycle keeps it for the garbage collector."""
    model = small()
    batch = (torch.randn(2, 3), torch.tensor([0, 1]))
    posterior = smidgen.fit.laplace(model, [batch], smidgen.select.last_layer(model))

    def count_layers():
        return sum(type(each) is nn.Linear for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = count_layers()
        smidgen.predict(posterior, model, batch[0])
        smidgen.predict(posterior, model, batch[0], samples=3)
        assert count_layers() == before
    finally:
        gc.enable()


MODEL = small()


def by_a_global_name(_, batch):
    return MODEL(batch[0] if isinstance(batch, tuple) else batch)


def fit(model, **how):
    batch = (torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))
    problem = Problem(model, smidgen.Categorical(2), **how)
    return (
        problem,
        batch,
        smidgen.fit.laplace(problem, [batch], smidgen.select.last_layer(model)),
    )


def test_a_forward_that_runs_another_model_is_refused():
    with pytest.raises(DataError, match="forward must run the model it is given"):
        fit(MODEL, forward=by_a_global_name)
    _, batch, posterior = fit(MODEL)
    problem = Problem(MODEL, smidgen.Categorical(2), forward=by_a_global_name)
    for samples in (None, 3):
        with pytest.raises(DataError, match="forward must run the model it is given"):
            smidgen.predict(posterior, problem, batch, samples=samples)
    with pytest.raises(DataError, match="forward must run the model it is given"):
        smidgen.point_outputs(problem, [batch])


def test_a_forward_that_closes_over_the_model_runs_the_shadow(unchanged):
    model = small().train()
    _, batch, posterior = fit(model)
    problem = Problem(model, forward=lambda _, batch: model(batch[0]))
    for samples in (None, 3):
        wanted = smidgen.predict(posterior, model, batch, samples=samples)
        with unchanged(model):
            ours = smidgen.predict(posterior, problem, batch, samples=samples)
        # Draws of a forward of the caller's own run one by one, else all at once.
        torch.testing.assert_close(ours.probs, wanted.probs)


class Slots:
    """Not a module, and holds one outside any dictionary."""

    __slots__ = ("held",)

    def __init__(self, held):
        self.held = held


class Reaching(nn.Module):
    """Reaches one of its layers by a path of its own."""

    def __init__(self, hide, reach):
        super().__init__()
        self.enter, self.layer = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4))
        self.leave, self.reach = nn.Linear(4, 2), reach
        object.__setattr__(self, "path", hide(self.layer[0]))

    def forward(self, x):
        return self.leave(torch.tanh(self.reach(self.path)(self.enter(x))))


NAMED = {}
HIDDEN = {
    "namespace": (lambda m: SimpleNamespace(held=m), lambda path: path.held),
    "slots": (Slots, lambda path: path.held),
    "two-objects-deep": (lambda m: Holder(Holder(m)), lambda path: path.module.module),
    "proxy": (lambda m: MappingProxyType({0: m}), lambda path: path[0]),
    "cache": (lambda m: lru_cache(lambda: m), lambda path: path()),
    "values": (lambda m: {0: m}.values(), lambda path: next(iter(path))),
    "weak-values": (lambda m: WeakValueDictionary({0: m}), lambda path: path[0]),
    "array": (lambda m: np.array([m, None], dtype=object), lambda path: path[0]),
    "global": (lambda m: NAMED.update(held=m), lambda _: NAMED["held"]),
}


@pytest.mark.parametrize("path", HIDDEN)
@pytest.mark.parametrize("own", [False, True], ids=["default", "own-forward"])
def test_a_model_that_runs_an_original_layer_is_refused(path, own):
    model = Reaching(*HIDDEN[path]).train().requires_grad_(own)
    how = {"forward": lambda model, batch: model(batch[0])} if own else {}
    with pytest.raises(DataError, match=r"runs 'layer\.0' of the original"):
        fit(model, **how)
    batch = (torch.randn(2, 3), torch.tensor([0, 1]))
    problem = Problem(model, smidgen.Categorical(2), **how)
    for shadowed in (problem, problem.on_shadow(), problem.on_shadow().on_shadow()):
        with pytest.raises(DataError, match=r"runs 'layer\.0' of the original"):
            shadowed.outputs(batch)
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_an_original_layer_is_refused_though_the_model_catches_all():
    class Catching(Reaching):
        def forward(self, x):
            try:
                return super().forward(x)
            except Exception:
                return self.leave(self.enter(x))

    with pytest.raises(DataError, match=r"runs 'layer\.0' of the original"):
        fit(Catching(*HIDDEN["slots"]))


def test_a_layer_run_without_a_call_beside_others_is_refused():
    model = Reaching(lambda m: [m.forward], lambda path: path[0])
    batch = (torch.randn(2, 3), torch.tensor([0, 1]))
    subset = smidgen.select.sparse_kfac(model, percent=100)
    with pytest.raises(DataError, match=r"weights of 'layer\.0' without a call"):
        smidgen.fit.laplace(model, [batch], subset)


def test_weights_used_without_a_call_of_their_layer_are_refused():
    def forward(model, batch):
        return nn.functional.linear(batch[0], model.weight, model.bias)

    with pytest.raises(DataError, match="forward must call the layers"):
        fit(nn.Linear(3, 2), forward=forward)


def test_a_layer_that_does_not_run_in_a_batch_is_no_mistake():
    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            return self.left(x) if x[0, 0] > 0 else self.right(x)

    model, x = Either(), torch.ones(2, 3)
    subset = smidgen.select.named(model, ["left.*"])
    posterior = smidgen.fit.laplace(model, [(x, torch.tensor([0, 1]))], subset)
    assert (smidgen.predict(posterior, model, x).logit_covariance != 0).any()
    assert not smidgen.predict(posterior, model, -x).logit_covariance.any()
