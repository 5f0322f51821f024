"""Passes that differ in some weights share what comes before them, and nothing else."""

from __future__ import annotations

import pytest
import torch
from tests.cases import SELECTORS, Case, Shared, mlp, vectors
from torch import nn

import smidgen
from smidgen.guard import untouched
from smidgen.memo import Memo
from smidgen.problem import model_outputs
from smidgen.samples import sampled_outputs

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
    problem = case.problem(model)
    memo = Memo(model, subset.parts)
    with unchanged(model), untouched(model), torch.no_grad():
        for seed in range(4):
            weights = replaced(model, subset, seed)
            plain = problem.outputs(batch, weights)
            with memo.passing():
                assert torch.equal(problem.outputs(batch, weights), plain)


def counted(model):
    """How often each map runs, seen from its hooks' place: the linear function itself."""
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
    memo = Memo(model, ["2.bias"])
    problem = smidgen.Problem(model, smidgen.Categorical(3))
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
    memo = Memo(model, ["leave.weight"])
    problem = smidgen.Problem(model, smidgen.Categorical(3))
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
    problem = smidgen.Problem(model, smidgen.Categorical(2))
    memo = Memo(model, ["second.weight"])
    with torch.no_grad():
        plain = problem.outputs(x)
        for _ in range(3):
            with memo.passing():
                assert torch.equal(problem.outputs(x), plain)


class Trap(Exception):
    pass


def test_an_exception_leaves_the_model_as_it_was(unchanged):
    model, batch = Case("mlp", mlp, 3, vectors).make()
    memo = Memo(model, ["4.weight"])

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
