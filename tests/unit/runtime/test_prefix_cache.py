"""Passes that differ in some weights share what comes before them, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import smidgen
from smidgen.outputs.problem import model_outputs
from smidgen.posterior.sampling import sampled_outputs
from smidgen.runtime.prefix_cache import PrefixCache
from tests.support.cases import SELECTORS, Case, Shared, mlp, vectors

IDLE_MAPS_ARE_FINE = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")


def replaced(model, subset, seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: p.detach() + torch.randn(p.shape, dtype=p.dtype, generator=generator)
        for name, p in model.named_parameters()
        if name in subset.parts
    }


@IDLE_MAPS_ARE_FINE
@pytest.mark.parametrize("selector", ["last-layer", "max-norm-module", "sparse-kfac-40"])
def test_outputs_are_those_of_plain_passes(case, selector, unchanged):
    model, batch = case.make()
    subset = SELECTORS[selector](model)
    problem = case.problem(model).on_shadow()
    memo = PrefixCache(problem.model, subset.parts)
    with unchanged(model), torch.no_grad():
        for seed in range(4):
            weights = replaced(model, subset, seed)
            plain = problem.outputs(batch, weights)
            with memo.passing():
                assert torch.equal(problem.outputs(batch, weights), plain)


def counted(model):
    """How often each layer runs, seen from its hooks' place: the linear function itself."""
    calls = dict.fromkeys((n for n, m in model.named_modules() if hasattr(m, "weight")), 0)
    for name in calls:
        module = model.get_submodule(name)
        plain = module.forward

        def run(*args, own=name, plain=plain, **kwargs):
            calls[own] += 1
            return plain(*args, **kwargs)

        module.forward = run
    return calls


def test_maps_below_the_lowest_change_run_once():
    model, batch = Case("mlp", mlp, 3, vectors).make()
    calls = counted(model)
    problem = smidgen.Problem(model, smidgen.Categorical(3)).on_shadow()
    memo = PrefixCache(problem.model, ["2.bias"])
    subset = smidgen.select.named(model, ["2.bias"])
    with torch.no_grad():
        for seed in range(5):
            with memo.passing():
                problem.outputs(batch, replaced(model, subset, seed))
    assert calls == {"0": 1, "2": 5, "4": 5}
    memo.forget()
    with torch.no_grad(), memo.passing():
        problem.outputs(batch)
    assert calls == {"0": 2, "2": 6, "4": 6}


def test_a_module_that_runs_several_times_is_remembered_run_by_run():
    model, batch = Case("shared", Shared, 3, vectors).make()
    calls = counted(model)
    problem = smidgen.Problem(model, smidgen.Categorical(3)).on_shadow()
    memo = PrefixCache(problem.model, ["leave.weight"])
    outputs = []
    with torch.no_grad():
        for seed in range(3):
            weights = {"leave.weight": model.leave.weight + seed}
            with memo.passing():
                outputs.append(problem.outputs(batch, weights))
            assert torch.equal(outputs[-1], problem.outputs(batch, weights))
    # One pass under the memo and three plain ones; `hidden` runs twice in a pass.
    assert calls == {"enter": 4, "hidden": 8, "twin": 4, "leave": 6}


class AddsInPlace(nn.Module):
    """Writes to what another module returned: a remembered output would add up."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        hidden = self.first(x)
        hidden += 1
        return self.second(hidden)


def test_an_output_that_was_written_to_is_computed_again():
    torch.manual_seed(0)
    model, x = AddsInPlace(), torch.randn(4, 3)
    problem = smidgen.Problem(model, smidgen.Categorical(2)).on_shadow()
    memo = PrefixCache(problem.model, ["second.weight"])
    with torch.no_grad():
        plain = problem.outputs(x)
        for _ in range(3):
            with memo.passing():
                assert torch.equal(problem.outputs(x), plain)


def wandering(model, subset):
    """A posterior through random steps of the chosen weights."""
    collector = smidgen.fit.SwagCollector(model, subset, rank=3)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for _ in range(5):
            for name in subset.parts:
                parameter = model.get_parameter(name)
                parameter += torch.randn(parameter.shape, generator=generator)
            collector.collect()
    return collector.posterior(smidgen.Categorical(2))


class Pyramid(nn.Module):
    """Changes the container that a steady module returned."""

    def __init__(self):
        super().__init__()
        self.encode, self.head = Levels(), nn.Linear(3, 2)

    def forward(self, x):
        levels = self.encode(x)
        levels["deep"] = self.head(levels["deep"])
        return levels["deep"]


class Levels(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return {"deep": self.layer(x)}


class Scratch(nn.Module):
    """Passes on a buffer that it writes to: the same tensor with other numbers."""

    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Linear(3, 3), nn.Linear(3, 2)
        self.place = torch.zeros(4, 3)

    def forward(self, x):
        self.place.copy_(self.low(x))
        return self.high(self.place)


class Conditioned(nn.Module):
    """Tells a steady module something behind its inputs' back."""

    def __init__(self):
        super().__init__()
        self.gate, self.body = nn.Linear(3, 3), Film()

    def forward(self, x):
        self.body.condition = self.gate(x)
        return self.body(x)


class Film(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.condition = torch.zeros(())

    def forward(self, x):
        return self.layer(x + self.condition)


class Odd(nn.Module):
    """Passes on what cannot be compared: an object, a sparse tensor, a generator."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = Bag(), Bag(), nn.Linear(3, 2)

    def forward(self, x):
        sparse = torch.eye(3).to_sparse()
        return self.head(self.second(self.first(x, object()), sparse))


class Bag(nn.Module):
    def forward(self, x, anything):
        return x + 1


@pytest.mark.parametrize(
    ("build", "moving"),
    [
        (Pyramid, "head.weight"),
        (Scratch, "low.weight"),
        (Conditioned, "gate.weight"),
        (Odd, "head.weight"),
    ],
)
def test_networks_that_a_memo_cannot_see_through_are_sampled_rightly(build, moving):
    torch.manual_seed(0)
    model, x = build(), torch.randn(4, 3)
    # Large enough not to run at once.
    model.padding = nn.Parameter(torch.zeros(20_000))
    subset = smidgen.select.named(model, [moving])
    found = wandering(model, subset)
    problem = smidgen.Problem(model)
    ((_, ours),) = sampled_outputs(problem, found, [x], samples=6)
    ((_, plain),) = sampled_outputs(problem, found, [x], samples=6, reuse=False)
    assert torch.equal(ours, plain)
    assert (plain.std(0) > 0).any()


def test_modules_with_hooks_are_run_every_time():
    model, batch = Case("mlp", mlp, 3, vectors).make()
    seen = []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    problem = smidgen.Problem(model, smidgen.Categorical(3)).on_shadow()
    memo = PrefixCache(problem.model, ["4.weight"])
    with torch.no_grad():
        for _ in range(3):
            with memo.passing():
                problem.outputs(batch)
    assert len(seen) == 3


def test_a_network_that_writes_to_its_inputs_finds_them_as_they_were():
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            return self.layer(x.mul_(0.5))

    torch.manual_seed(0)
    model, x = Halves(), torch.randn(4, 3)
    before = x.clone()
    subset = smidgen.select.last_layer(model)
    found = wandering(model, subset)
    ((_, outputs),) = sampled_outputs(
        smidgen.Problem(model, forward=lambda net, own: net(own)), found, [x], samples=3
    )
    assert torch.equal(x, before)
    draw = found.sampler(model)
    source = torch.Generator().manual_seed(0)
    seeds = torch.randint(2**62, (3,), generator=source).tolist()
    for seed, own in zip(seeds, outputs, strict=True):
        (weights,) = draw([torch.Generator().manual_seed(seed)])
        wanted = torch.func.functional_call(model, weights, (before.clone(),))
        torch.testing.assert_close(own.float(), wanted)


class Trap(Exception):
    pass


def test_an_exception_leaves_the_model_as_it_was(unchanged):
    model, batch = Case("mlp", mlp, 3, vectors).make()
    memo = PrefixCache(model, ["4.weight"])

    def fail():
        with memo.passing():
            model_outputs(model, batch)
            raise Trap

    with unchanged(model), pytest.raises(Trap):
        fail()
    # A half-made pass fills no memo.
    assert not memo.filled


def test_small_networks_run_all_samples_at_once_with_the_same_outputs():
    model, batch = Case("mlp", mlp, 3, vectors).make()
    subset = smidgen.select.sparse_kfac(model, percent=50)
    posterior = smidgen.fit.laplace(model, [batch], subset)
    plain = smidgen.Problem(model, forward=lambda net, own: model_outputs(net, own))
    found = {}
    for name, problem in {"at once": smidgen.Problem(model), "one by one": plain}.items():
        ((_, found[name]),) = sampled_outputs(problem, posterior, [batch], samples=6)
    assert found["at once"].shape == (6, 6, 3)
    torch.testing.assert_close(found["at once"], found["one by one"])
