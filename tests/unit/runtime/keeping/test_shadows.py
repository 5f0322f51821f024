"""A shadow that is lent again computes what a new one would."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from threading import Barrier

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils import parametrizations, parametrize

import smidgen
from smidgen.errors import ArgumentError, DataError, StructureError
from smidgen.outputs.problem import Problem, model_outputs
from smidgen.runtime.keeping import shadows
from smidgen.runtime.keeping.structure import find_structure
from smidgen.runtime.shadow import find_origin
from smidgen.weights import blocks

X = torch.linspace(-2, 2, 12).reshape(4, 3)
BATCH = X, torch.tensor([0, 1, 1, 0])


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class Options:
    gain = 1.0


class Model(nn.Module):
    """Whose outputs depend on attributes of every kind."""

    def __init__(self):
        super().__init__()
        self.body, self.act, self.head = nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)
        self.register_buffer("shift", torch.zeros(6), persistent=False)
        self.scale, self.steps, self.table = 1.0, [1.0], {"gain": 1.0}
        self.options = Options()

    def forward(self, x):
        gain = self.scale * self.steps[-1] * self.table["gain"] * self.options.gain
        return self.head(self.act(self.body(x)) * gain + self.shift)


def fit(model):
    subset = smidgen.select.sparse_kfac(model, percent=60)
    return smidgen.fit.laplace(model, [BATCH], subset, progress=False)


def count_setups(monkeypatch):
    """Note every shadow and every coverage that is made."""
    made = []
    for room, name in ((shadows, "shadow_values"), (blocks, "coverage")):
        plain = getattr(room, name)

        def noting(*args, plain=plain, name=name):
            made.append(name)
            return plain(*args)

        monkeypatch.setattr(room, name, noting)
    return made


def predict_cold(posterior, model):
    """With copies, of which nothing is kept."""
    return smidgen.predict(deepcopy(posterior), deepcopy(model), X)


def assert_same(warm, cold):
    assert torch.equal(warm.log_probs, cold.log_probs)
    assert torch.equal(warm.logit_covariance, cold.logit_covariance)


def test_a_second_prediction_sets_nothing_up(monkeypatch):
    model = Model()
    posterior = fit(model)
    first = smidgen.predict(posterior, model, X)
    made = count_setups(monkeypatch)
    assert_same(smidgen.predict(posterior, model, X), first)
    smidgen.predict_batches(posterior, model, [X, X], progress=False)
    assert not made
    model.scale = 2.0
    smidgen.predict(posterior, model, X)
    assert made == ["shadow_values", "coverage"]


CHANGES = {
    "attribute": lambda m: setattr(m, "scale", 2.0),
    "list": lambda m: m.steps.append(2.0),
    "dict": lambda m: m.table.update(gain=2.0),
    "object": lambda m: setattr(m.options, "gain", 2.0),
    "hook": lambda m: m.act.register_forward_hook(lambda *a: 2 * a[-1]),
    "hook of a layer": lambda m: m.head.register_forward_hook(lambda *a: 2 * a[-1]),
    "pre-hook": lambda m: m.act.register_forward_pre_hook(lambda *a: (2 * a[-1][0],)),
    "submodule": lambda m: setattr(m, "act", nn.ReLU()),
    "forward": lambda m: setattr(m.act, "forward", torch.relu),
    "class": lambda m: setattr(m.act, "__class__", nn.Sigmoid),
    "buffer": lambda m: setattr(m, "shift", torch.ones(6)),
    "buffer in place": lambda m: m.shift.add_(1),
    "buffer's data": lambda m: setattr(m.shift, "data", torch.ones(6)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_model_is_seen(change):
    model = Model()
    posterior = fit(model)
    before = smidgen.predict(posterior, model, X)
    undone = CHANGES[change](model)
    after = smidgen.predict(posterior, model, X)
    assert not torch.equal(after.log_probs, before.log_probs)
    assert_same(after, predict_cold(posterior, model))
    if "hook" in change:
        undone.remove()
        assert_same(smidgen.predict(posterior, model, X), before)


@pytest.mark.parametrize("eager", [True, False])
def test_modes_and_frozen_weights_make_no_difference(eager):
    model = Model().train(eager)
    posterior = fit(model)
    before = smidgen.predict(posterior, model, X)
    for change in (
        lambda: model.train(not eager),
        lambda: model.requires_grad_(False),
        lambda: model.requires_grad_(True),
        lambda: model.body.weight.requires_grad_(False),
    ):
        change()
        assert_same(smidgen.predict(posterior, model, X), before)


WRITES = {
    "in place": lambda p: p.add_(0.01),
    "data": lambda p: p.data.add_(0.01),
    "data elsewhere": lambda p: setattr(p, "data", p.data + 0.01),
    "one entry of data": lambda p: p.data.view(-1)[0].add_(0.01),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", ["body.weight", "head.bias"])
def test_changed_weights_are_refused_and_seen(write, name):
    model = Model()
    posterior = fit(model)
    smidgen.predict(posterior, model, X)
    before = deepcopy(model.state_dict())
    with torch.no_grad():
        WRITES[write](model.get_parameter(name))
    with pytest.raises(ArgumentError, match="must be the one the posterior was fitted to"):
        smidgen.predict(posterior, model, X)
    model.load_state_dict(before)
    assert_same(smidgen.predict(posterior, model, X), predict_cold(posterior, model))
    # The same numbers somewhere else, then others in that place.
    model.head.weight.data = model.head.weight.data.clone()
    smidgen.predict(posterior, model, X)
    model.head.weight.data.mul_(2)
    other = fit(model)
    assert_same(smidgen.predict(other, model, X), predict_cold(other, model))


def test_a_replaced_weight_is_refused_and_seen():
    model = Model()
    posterior = fit(model)
    smidgen.predict(posterior, model, X)
    model.head.weight = nn.Parameter(2 * model.head.weight.detach())
    with pytest.raises(ArgumentError, match="must be the one the posterior was fitted to"):
        smidgen.predict(posterior, model, X)
    other = fit(model)
    assert_same(smidgen.predict(other, model, X), predict_cold(other, model))


def test_a_posterior_of_another_precision_or_temperature_is_another():
    model = Model()
    posterior = fit(model)
    before = smidgen.predict(posterior, model, X)
    for other in (posterior.with_precision(7.0), posterior.with_temperature(3.0)):
        predictive = smidgen.predict(other, model, X)
        assert not torch.equal(predictive.log_probs, before.log_probs)
        assert_same(predictive, predict_cold(other, model))
    assert_same(smidgen.predict(posterior, model, X), before)


def count(model):
    model.count += 1
    return model.count


def fill(model):
    model.cache.append(1.0)
    return len(model.cache)


def mark(model):
    model.act.runs = getattr(model.act, "runs", 0) + 1
    return model.act.runs


def replace_weight(model):
    model.body.bias.data = model.body.bias + 1
    return float(model.body.bias[0])


def hook(model):
    model.act.register_forward_hook(lambda *a: 2 * a[-1])
    return 1


class Writing(Model):
    """Writes to itself in every pass, and computes with what it wrote."""

    def __init__(self, write):
        super().__init__()
        self.write, self.count, self.cache = write, 0, []

    def forward(self, x):
        return super().forward(x) + self.write(self) * x[:, :2]


# A layer whose bias is written outside its call is left out of the fit, which is said.
@pytest.mark.filterwarnings("ignore:1 chosen layers stay deterministic. body")
@pytest.mark.parametrize("write", [count, fill, mark, replace_weight, hook])
def test_what_a_pass_writes_is_gone_with_it(write):
    model = Writing(write)
    posterior = fit(model)
    first = smidgen.predict(posterior, model, X)
    for _ in range(6):
        assert_same(smidgen.predict(posterior, model, X), first)
    assert model.count == 0
    assert not model.cache


def test_buffers_that_count_start_anew():
    class Counting(Model):
        def forward(self, x):
            self.shift += 1
            return super().forward(x)

    model = Counting()
    posterior = fit(model)
    first = smidgen.predict(posterior, model, X)
    assert_same(smidgen.predict(posterior, model, X), first)
    assert not model.shift.any()


def test_a_shadow_that_failed_is_not_lent_again():
    class Failing(Model):
        def forward(self, x):
            self.failed = bool(x.sum() > 1e6)
            if self.failed:
                raise DataError("too large")
            del self.failed
            return super().forward(x)

    model = Failing()
    posterior = fit(model)
    first = smidgen.predict(posterior, model, X)
    with pytest.raises(DataError, match="too large"):
        smidgen.predict(posterior, model, X + 1e7)
    assert_same(smidgen.predict(posterior, model, X), first)


def test_a_forward_that_holds_the_model_gets_a_shadow_of_its_own(monkeypatch):
    model = Model()
    posterior = fit(model)
    wanted = smidgen.predict(posterior, model, X)
    made = count_setups(monkeypatch)
    problem = Problem(model, forward=lambda _, batch: model(batch))
    for _ in range(2):
        assert_same(smidgen.predict(posterior, problem, X), wanted)
    assert made.count("shadow_values") == 2


HIDDEN = {}


def run_hidden(model, batch):
    return HIDDEN["model"](batch)


def test_another_forward_is_checked_again():
    model = Model()
    posterior = fit(model)
    smidgen.predict(posterior, model, X)
    HIDDEN["model"] = model
    with pytest.raises(DataError, match="forward must run the model it is given"):
        smidgen.predict(posterior, Problem(model, forward=run_hidden), X)
    HIDDEN.clear()


def test_a_cache_of_parametrizations_is_refused_though_a_shadow_is_idle():
    model = Model()
    parametrizations.weight_norm(model.body)
    posterior = smidgen.fit.laplace(model, [BATCH], smidgen.select.last_layer(model))
    smidgen.predict(posterior, model, X)
    with (
        parametrize.cached(),
        pytest.raises(StructureError, match="outside torch.nn.utils"),
    ):
        smidgen.predict(posterior, model, X)


def test_one_call_has_a_shadow_to_itself():
    model = Model()
    problem = Problem(model)
    with problem.on_lent_shadow() as first, problem.on_lent_shadow() as second:
        assert first.model is not second.model
        with first.on_lent_shadow() as same:
            assert same is first
        assert find_origin(first.model).structure is find_structure(model)
        assert len(find_structure(model).idle) == 0
    assert len(find_structure(model).idle) == 2
    with problem.on_lent_shadow() as again:
        assert again.model in (first.model, second.model)
        assert not again.model.training
    assert first.structure is None


def test_threads_share_no_shadow_and_every_number_is_right():
    model = Model()
    posterior = fit(model)
    batches = [X + shift for shift in range(8)]
    wanted = [smidgen.predict(deepcopy(posterior), deepcopy(model), x) for x in batches]
    barrier = Barrier(8)

    def work(number):
        barrier.wait()
        return [smidgen.predict(posterior, model, batches[number]) for _ in range(50)]

    with ThreadPoolExecutor(8) as pool:
        for number, predictives in enumerate(pool.map(work, range(8))):
            for predictive in predictives:
                assert_same(predictive, wanted[number])
    assert 1 <= len(find_structure(model).idle) <= 8


@pytest.mark.parametrize("first", ["model", "posterior"])
def test_neither_model_nor_posterior_is_kept_alive(first):
    held = {"model": Model()}
    held["posterior"] = fit(held["model"])
    smidgen.predict(held["posterior"], held["model"], X)
    operator = next(iter(held["posterior"].operators.values()))
    weights, factor = held["model"].head.weight, operator.row_vectors
    parts = {
        "model": [weakref.ref(held["model"]), weakref.ref(weights)],
        "posterior": [weakref.ref(held["posterior"]), weakref.ref(factor)],
    }
    storage = StorageWeakRef(weights.untyped_storage())
    del operator, weights, factor
    gc.collect()
    gc.disable()
    try:
        del held[first]
        assert [part() for part in parts[first]] == [None, None]
        held.clear()
        assert not any(part() for both in parts.values() for part in both)
    finally:
        gc.enable()
    # Nobody else has the weights' memory: not a shadow, nor a probe.
    assert storage.expired()


def test_no_activation_is_kept():
    model = Model()
    posterior = fit(model)
    smidgen.predict(posterior, model, X)
    seen = []

    def noting(net, batch):
        outputs = model_outputs(net, batch)
        seen.append(weakref.ref(outputs))
        return outputs

    smidgen.predict(posterior, Problem(model, forward=noting), X)
    x = X.clone()
    # The lowest layer's input shares its memory.
    storage = StorageWeakRef(x.untyped_storage())
    smidgen.predict(posterior, model, x)
    del x
    assert storage.expired()
    assert [each() for each in seen] == [None]
