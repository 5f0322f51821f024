"""The caller's model is never changed, also not by an exception in the middle."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Barrier

import pytest
import torch
from torch import nn

import smidgen
from smidgen.errors import DataError
from smidgen.outputs.problem import model_outputs
from smidgen.prediction import dropout_outputs
from smidgen.runtime.guard import require_runs
from smidgen.runtime.shadow import find_origin, shadow_model

EDGES_ARE_FINE = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")


def shuffling(batch):
    """A loader that draws from the global RNG, as a shuffling one does."""
    torch.rand(1)
    yield batch


def disturbed(case):
    """A model in a state that a careless pass would tidy up."""
    model, batch = case.make()
    model.train()
    next(iter(model.children()), model).eval()
    parameters = list(model.parameters())
    parameters[0].requires_grad_(False)
    parameters[-1].grad = torch.ones_like(parameters[-1])
    return model, batch


@EDGES_ARE_FINE
def test_the_whole_path_leaves_the_model_as_it_was(case, unchanged, tmp_path):
    model, batch = disturbed(case)
    problem = case.problem(model)
    with unchanged(model):
        subset = smidgen.select.sparse_kfac(model, percent=50)
        posterior = smidgen.fit.laplace(problem, shuffling(batch), subset)
        posterior = smidgen.calibrate(posterior, problem, shuffling(batch))
        smidgen.predict(posterior, problem, batch)
        smidgen.point_outputs(problem, [batch])
        smidgen.save(posterior, tmp_path / "posterior")
        loaded = smidgen.load(tmp_path / "posterior", model)
    assert loaded == posterior


@EDGES_ARE_FINE
def test_finetuning_works_on_a_copy(unchanged, case):
    model, batch = disturbed(case)
    problem = case.problem(model)
    with unchanged(model):
        found = smidgen.fit.finetune(
            problem,
            [batch],
            validation=[batch],
            settings=smidgen.fit.FinetuneSettings(epochs=2, learning_rate=1e-2),
        )
    assert found.model is not model
    moved = [
        name
        for name, parameter in found.model.named_parameters()
        if not torch.equal(parameter, model.get_parameter(name))
    ]
    assert moved


class Trap(Exception):
    pass


@pytest.mark.parametrize("where", ["loader", "forward", "backward"])
def test_an_exception_in_the_middle_changes_nothing(case, unchanged, where):
    model, batch = disturbed(case)
    subset = smidgen.select.sparse_kfac(model, percent=50)

    class Explosive(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise Trap

    def forward(net, own):
        outputs = model_outputs(net, own)
        if where == "forward":
            raise Trap
        return Explosive.apply(outputs) if where == "backward" else outputs

    def batches():
        yield batch
        if where == "loader":
            raise Trap

    problem = smidgen.Problem(model, case.problem(model).likelihood, forward=forward)
    with unchanged(model), pytest.raises(Trap):
        smidgen.fit.laplace(problem, batches(), subset)


def test_no_weight_gradient_is_computed(monkeypatch):
    """The graph starts at the first tapped activation: weights are not part of it."""
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 4)
    )
    asked = []
    original = torch.autograd.grad

    def spying(outputs, inputs, **kwargs):
        asked.extend(inputs)
        return original(outputs, inputs, **kwargs)

    monkeypatch.setattr(torch.autograd, "grad", spying)
    batch = (torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))
    smidgen.fit.laplace(model, [batch], smidgen.select.last_layer(model))
    # Two examples to see which layer makes the outputs, then the first batch: once to see that
    # its examples are kept apart, and once for each of three columns.
    shapes = [tuple(each.shape) for each in asked]
    assert shapes == [(2, 6), (2, 4), *[(5, 4)] * 4]


def test_a_batch_the_model_cannot_read_is_named():
    class Odd(torch.nn.Sequential):
        def forward(self, x):
            return {"answer": super().forward(x)}

    model = Odd(torch.nn.Linear(3, 2))
    with pytest.raises(DataError, match="the model must return its logits, got dict"):
        smidgen.fit.laplace(model, [torch.randn(2, 3)], smidgen.select.last_layer(model))


def test_a_refusal_while_it_is_alive_has_left_the_model_alone(unchanged):
    """The traceback of a kept exception must not keep the model tapped."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    batch = (torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))
    posterior = smidgen.fit.laplace(model, [batch], smidgen.select.last_layer(model))
    with unchanged(model):
        with pytest.raises(DataError, match="needs labels") as kept:
            smidgen.calibrate(posterior, model, [batch[0]])
        assert kept.tb is not None
        assert model.training
        assert not any(m._forward_hooks for m in model.modules())


def test_buffers_that_count_do_not_count_in_the_callers_model(unchanged):
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(3, 2)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.head(x)

    model = Counter()
    batch = (torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))
    with unchanged(model):
        posterior = smidgen.fit.laplace(model, [batch], smidgen.select.last_layer(model))
        smidgen.predict(posterior, model, batch)
    assert float(model.calls) == 0


def test_a_callers_autocast_reaches_the_model_and_not_our_sums():
    """bf16 products of factors would be off by a percent; the model's outputs may be."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Tanh())
    model.append(torch.nn.Linear(30, 2))
    batch = (torch.randn(64, 40), torch.zeros(64, dtype=torch.int64))
    problem = smidgen.Problem(model, smidgen.Categorical(2), forward=plainly)
    subset = smidgen.select.sparse_kfac(model, percent=100)
    plain = smidgen.fit.laplace(problem, [batch], subset)
    variance = smidgen.predict(plain, problem, batch).logit_covariance
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = smidgen.fit.laplace(problem, [batch], subset)
        again = smidgen.predict(under, problem, batch).logit_covariance
    for name, operator in plain.operators.items():
        torch.testing.assert_close(under.operators[name].values, operator.values)
    torch.testing.assert_close(again, variance)


def plainly(net, batch):
    """A forward pass that asks for full precision itself."""
    with torch.autocast("cpu", enabled=False):
        return net(batch[0])


def test_batches_may_come_from_a_thread_that_seeds():
    """A call in the main thread keeps nobody waiting whom it waits for."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5))
    batch = (torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1]))

    def batches():
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(dropout_outputs, model, [batch], samples=2)
            assert asked.result(timeout=20).shape == (2, 5, 2)
        torch.rand(1)
        yield batch

    before = torch.get_rng_state()
    smidgen.point_outputs(model, batches())
    assert torch.equal(torch.get_rng_state(), before)


def test_calls_are_watched_in_one_thread_only():
    """Whatever other threads run or watch, each sees its own calls, and no hook stays."""
    global_hooks = torch.nn.modules.module._global_forward_pre_hooks
    barrier = Barrier(4)

    def run(watching):
        layer, x = nn.Linear(2, 2), torch.zeros(1, 2)
        other, seen = nn.Linear(2, 2), []
        shadow = shadow_model(layer)
        origin = find_origin(shadow)
        barrier.wait()
        for _ in range(200):
            origin.checked = False
            with require_runs(origin, lambda: False) if watching else nullcontext():
                shadow(x)
                other(x)
            seen.append(origin.checked)
            layer(x)
        return seen

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, [True, False, True, True]))
    assert [all(seen) for seen in found] == [True, False, True, True]
    assert not global_hooks
