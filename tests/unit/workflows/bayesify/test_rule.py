"""The rule of the choice, over many simulated sets of held-out rows."""

from __future__ import annotations

import pytest
import torch

from smidgen.workflows.bayesify.rule import find_clearly_worse, keep_cheapest

NAMES = ("temperature", "isotropic", "last-layer", "head-isotropic", "sparse-kfac-10")
ROWS, REPEATS = 300, 200


def simulate(gains, *, spread=0.1, seed=0):
    """Row NLLs of all candidates: a common part, gains over the first, and own noise."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.rand(ROWS, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(NAMES), ROWS, generator=generator, dtype=torch.float64)
    noise[0] = 0
    return {
        name: common - gain + spread * noise[number]
        for number, (name, gain) in enumerate(zip(NAMES, gains, strict=True))
    }


def count_kept(gains):
    kept = [keep_cheapest(simulate(gains, seed=seed)) for seed in range(REPEATS)]
    return {name: kept.count(name) / REPEATS for name in NAMES}


def test_temperature_scaling_stays_where_nothing_is_better():
    # Four others at 2.5 % each may look clearly better by chance: a tenth at most.
    assert count_kept((0, 0, 0, 0, 0))["temperature"] > 0.88


def test_temperature_scaling_stays_where_all_else_is_worse():
    assert count_kept((0, -0.05, -0.05, -0.05, -0.05))["temperature"] == 1


def test_a_clear_gain_is_taken_and_the_cheapest_of_equals_kept():
    kept = count_kept((0, 0, 0.05, 0.05, 0.05))
    assert kept["temperature"] == 0
    # The standard error of a difference is 0.008, so the gain is six of them.
    assert kept["last-layer"] > 0.85
    assert kept["isotropic"] == 0


def test_a_larger_gain_of_what_costs_more_is_paid_for():
    assert count_kept((0, 0, 0.05, 0.05, 0.15))["sparse-kfac-10"] == 1


def test_what_is_dearer_and_worse_than_a_refused_one_is_passed_over():
    # So noisy that it cannot be told from the best, and worse than the first.
    torch.manual_seed(0)
    base = torch.rand(ROWS, dtype=torch.float64)
    noise = torch.randn(ROWS, dtype=torch.float64)
    noise -= noise.mean()
    nlls = {"temperature": base, "isotropic": base + 0.01 + 3 * noise, "last": base - 0.05}
    assert find_clearly_worse(nlls) == {"temperature"}
    assert keep_cheapest(nlls) == "last"


@pytest.mark.parametrize("seed", range(3))
def test_the_best_is_always_there_to_be_kept(seed):
    nlls = simulate((0, 0.3, 0.2, 0.1, 0.4), seed=seed)
    worse = find_clearly_worse(nlls)
    assert "sparse-kfac-10" not in worse
    assert keep_cheapest(nlls) == "sparse-kfac-10"
    assert keep_cheapest({"temperature": nlls["temperature"]}) == "temperature"
