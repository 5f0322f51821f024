"""Moving the active set: exact density, the right weights, the right momentum."""

from __future__ import annotations

from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from smidgen.errors import ArgumentError
from smidgen.sparse import Rewiring, Schedule, SparseSettings, make_sparse, prune_network
from smidgen.sparse.budgets import share_out
from smidgen.sparse.grow import find_largest_gradients, tap_gradients
from smidgen.sparse.prune import PRUNING_SCORES
from smidgen.sparse.rewire import change_active_set
from tests.support.tolerances import ADAM_STEP, EXACT, SINGLE

SHAPES = {"a": (30, 20), "b": (8, 30), "c": (16, 3, 3, 3), "d": (2, 8)}


def convolutional():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 5, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(20, 4),
    )


def data(count=3):
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(6, 2, 6, 6, generator=generator),
            torch.randint(4, (6,), generator=generator),
        )
        for _ in range(count)
    ]


def losses_of(network, batches):
    return [lambda x=x, y=y: nn.functional.cross_entropy(network(x), y) for x, y in batches]


@given(st.floats(1e-4, 1.0), st.sampled_from(["uniform", "erk", "global"]))
def test_budgets_are_exact(density, budget):
    found = share_out(SHAPES, density, budget)
    sizes = {name: prod(shape) for name, shape in SHAPES.items()}
    assert sum(found.values()) == max(len(sizes), round(density * sum(sizes.values())))
    assert all(1 <= found[name] <= sizes[name] for name in sizes)


def test_the_kernel_budget_keeps_small_maps_denser():
    found = share_out(SHAPES, 0.1, "erk")
    density = {name: found[name] / prod(shape) for name, shape in SHAPES.items()}
    raw = {name: sum(shape) / prod(shape) for name, shape in SHAPES.items()}
    factors = [density[name] / raw[name] for name in ("a", "b", "c")]
    assert max(factors) / min(factors) < 1.05
    assert density["d"] > density["b"] > density["a"]


@pytest.mark.parametrize("budget", ["uniform", "erk", "global"])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
@pytest.mark.parametrize("removal", PRUNING_SCORES)
def test_the_density_is_exact_at_every_step(budget, kind, removal):
    network = make_sparse(
        convolutional(), density=0.2, settings=SparseSettings(budget=budget)
    )
    count = network.count
    assert count == round(0.2 * network.total)
    optimiser = (
        torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
        if kind == "sgd"
        else torch.optim.Adam(network.parameters(), lr=0.01)
    )
    alternation = Rewiring(network, optimiser, Schedule(40, every=3), removal=removal)
    batches, moves = data(), 0
    for step in range(40):
        x, y = batches[step % 3]
        loss = nn.functional.cross_entropy(network(x), y) + network.kl() / 100
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        move = alternation.advance(lambda: losses_of(network, batches))
        moves += move is not None
        assert network.count == network.subset().size == count
        for part in network.layers.values():
            assert part.means.shape == part.log_scales.shape == (part.pattern.count,)
            for held in (part.means, part.log_scales):
                kept = [s for s in optimiser.state[held].values() if s.dim()]
                assert all(s.shape == held.shape for s in kept)
    # Steps 3, 6, …, 27: the set stays after three quarters, and at last none is due.
    assert 7 <= moves <= 9


def test_new_weights_start_at_zero_with_the_mean_scale_and_no_momentum():
    network = make_sparse(nn.Linear(6, 5), density=0.4)
    part = network.layers[""]
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    (network(torch.randn(3, 6)).square().sum() + network.kl()).backward()
    optimiser.step()
    old = part.pattern.list_indices().tolist()
    means = dict(zip(old, part.means.tolist(), strict=True))
    logs = dict(zip(old, part.log_scales.tolist(), strict=True))
    buffer = optimiser.state[part.means]["momentum_buffer"].tolist()
    momentum = dict(zip(old, buffer, strict=True))
    fresh = float(part.scales.detach().mean().log())
    wanted = [*old[2:], *(i for i in range(30) if i not in old)][: len(old)]
    change_active_set(part, torch.tensor(wanted), optimiser)
    new = part.pattern.list_indices().tolist()
    assert new == sorted(wanted)
    assert part.means.tolist() == [means.get(i, 0.0) for i in new]
    assert part.log_scales.tolist() == pytest.approx([logs.get(i, fresh) for i in new])
    found = optimiser.state[part.means]["momentum_buffer"].tolist()
    assert found == [momentum.get(i, 0.0) for i in new]


@pytest.mark.parametrize(
    "options", [{"amsgrad": False}, {"amsgrad": True}], ids=["adam", "amsgrad"]
)
def test_new_weights_take_steps_of_about_the_rate_under_adam(options):
    """Late in training Adam no longer corrects for moments that start at zero."""
    rate = 1e-3
    network = make_sparse(nn.Linear(6, 5, bias=False), density=0.4)
    part = network.layers[""]
    optimiser = torch.optim.AdamW(network.parameters(), rate, weight_decay=0.0, **options)

    def steps(count):
        for _ in range(count):
            for held in (part.means, part.log_scales):
                held.grad = torch.full_like(held, 0.3)
            optimiser.step()

    steps(3000)
    old = part.pattern.list_indices().tolist()
    wanted = [*old[2:], *(i for i in range(30) if i not in old)][: len(old)]
    change_active_set(part, torch.tensor(wanted), optimiser)
    for held in (part.means, part.log_scales):
        state = optimiser.state[held]
        for key in [k for k in state if k.endswith("exp_avg_sq")]:
            expected = state[key].mean().expand_as(held)
            torch.testing.assert_close(state[key], expected, **SINGLE)
    new = torch.tensor([i not in old for i in part.pattern.list_indices().tolist()])
    assert int(new.sum()) == 2
    for _ in range(30):
        before = [part.means.detach().clone(), part.log_scales.detach().clone()]
        steps(1)
        for was, held in zip(before, (part.means, part.log_scales), strict=True):
            assert ((was - held.detach()).abs()[new] <= ADAM_STEP * rate).all()


@pytest.mark.parametrize("path", ["dense", "sparse"])
@pytest.mark.parametrize("noise", ["local", "none"])
def test_layers_that_work_in_place_are_no_obstacle(path, noise):
    def make(in_place):
        torch.manual_seed(0)
        layers = [nn.Linear(6, 9, bias=False), nn.ReLU(inplace=in_place), nn.Linear(9, 4)]
        return nn.Sequential(*layers).double()

    x, y = torch.randn(5, 6).double(), torch.arange(5) % 4
    found = []
    for in_place in (False, True):
        network = make_sparse(
            make(in_place), density=0.5, settings=SparseSettings(path=path, noise=noise)
        )
        nn.functional.cross_entropy(network(x), y).backward()
        taps = tap_gradients(network.model, network.layers, losses_of(network, [(x, y)]))
        outers = [outer for tap in taps.values() for _, outer in tap]
        found.append([*(p.grad for p in network.layers["0"].parameters()), *outers])
    for left, right in zip(*found, strict=True):
        assert (left is None and right is None) or torch.equal(left, right)


@pytest.mark.parametrize("block", [1, 40, 10**6])
@pytest.mark.parametrize("path", ["dense", "sparse"])
def test_the_largest_gradients_are_those_of_the_dense_model(block, path):
    model = convolutional().double()
    network = make_sparse(
        model, density=0.3, settings=SparseSettings(noise="none", path=path)
    )
    batches = [(x.double(), y) for x, y in data()]
    taps = tap_gradients(network.model, network.layers, losses_of(network, batches))
    dense = convolutional().double().train()
    dense.load_state_dict(network.dense_state_dict())
    for x, y in batches:
        nn.functional.cross_entropy(dense(x), y).backward()
    for name, part in network.layers.items():
        gradient = dense.get_submodule(name).weight.grad.abs().flatten()
        kept = part.pattern.list_indices()[::2].contiguous()
        gradient[kept.long()] = -1
        found = find_largest_gradients(part, taps[name], kept, 7, block)
        expected = gradient.topk(7)
        assert found.indices.tolist() == expected.indices.tolist()
        torch.testing.assert_close(found.scores, expected.values, **EXACT)


@pytest.mark.parametrize("path", ["dense", "sparse"])
def test_the_largest_gradients_under_local_noise_are_those_of_a_dense_oracle(path):
    """μ x + b + √(σ² x²) ε with the same ε, differentiated in all of μ."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 4)).double()
    network = make_sparse(model, density=0.4, settings=SparseSettings(path=path, scale=0.7))
    batches = [(torch.randn(6, 7).double(), torch.arange(6) % 4) for _ in range(3)]
    network.generator.manual_seed(3)
    taps = tap_gradients(network.model, network.layers, losses_of(network, batches))

    source = torch.Generator().manual_seed(3)
    dense = {n: part.to_dense().requires_grad_() for n, part in network.layers.items()}

    def noisy(name, x):
        part = network.layers[name]
        variance = x.square() @ part.to_dense(part.scales).square().T
        noise = torch.empty(len(dense[name]), len(x), dtype=x.dtype)
        spread = variance.clamp_min(torch.finfo(x.dtype).tiny).sqrt()
        drawn = noise.normal_(generator=source).T
        return x @ dense[name].T + part.bias.detach() + spread * drawn

    for x, y in batches:
        nn.functional.cross_entropy(noisy("2", noisy("0", x).tanh()), y).backward()
    for name, part in network.layers.items():
        gradient = dense[name].grad.abs().flatten()
        kept = part.pattern.list_indices()
        gradient[kept.long()] = -1
        found = find_largest_gradients(part, taps[name], kept, 5)
        expected = gradient.topk(5)
        assert found.indices.tolist() == expected.indices.tolist()
        torch.testing.assert_close(found.scores, expected.values, **EXACT)


def test_growing_sees_every_pass_once_under_activation_checkpointing():
    class Recomputing(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 4)
            self.asked = False

        def forward(self, x):
            if not self.asked:
                return self.last(self.first(x).tanh())
            inner = checkpoint(lambda x: self.first(x).tanh(), x, use_reentrant=False)
            return checkpoint(self.last, inner, use_reentrant=False)

    x, y = torch.randn(5, 6).double(), torch.arange(5) % 4
    found = []
    for asked in (False, True):
        network = make_sparse(
            Recomputing().double(), density=0.5, settings=SparseSettings(noise="none")
        )
        network.model.asked = asked
        network.set_path("dense")
        taps = tap_gradients(
            network.model, network.layers, losses_of(network, [(x, y)] * 2)
        )
        assert all(len(tap) == 2 for tap in taps.values())
        found.append([outer for tap in taps.values() for _, outer in tap])
    for left, right in zip(*found, strict=True):
        torch.testing.assert_close(left, right, **EXACT)


def test_growing_leaves_buffers_and_gradients_alone():
    network = make_sparse(convolutional(), density=0.3)
    before = {n: b.clone() for n, b in network.named_buffers()}
    tap_gradients(network.model, network.layers, losses_of(network, data()))
    assert all(torch.equal(b, before[n]) for n, b in network.named_buffers())
    assert all(p.grad is None for p in network.parameters())
    assert not any(part._forward_hooks for part in network.layers.values())


def test_a_move_takes_the_lowest_and_brings_the_steepest():
    torch.manual_seed(0)
    network = make_sparse(
        nn.Linear(10, 8).double(), density=0.5, settings=SparseSettings(noise="none")
    )
    part = network.layers[""]
    x, y = torch.randn(16, 10).double(), torch.randn(16, 8).double()
    loss = lambda: (network(x) - y).square().mean()  # noqa: E731
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    old = part.pattern.list_indices().long()
    lowest = old[part.means.detach().abs().argsort()[:12]]
    dense = part.to_dense().requires_grad_()
    (nn.functional.linear(x, dense, part.bias.detach()) - y).square().mean().backward()
    gradient = dense.grad.abs().flatten()
    stays = old[~torch.isin(old, lowest)]
    gradient[stays] = -1
    expected = torch.cat([stays, gradient.topk(12).indices]).sort().values
    # cos(0) = 1 would be step 0; so replace a share that rounds to 12 of 40.
    schedule = Schedule(10**6, every=1, fraction=0.3001)
    Rewiring(network, optimiser, schedule, removal="magnitude").advance(lambda: [loss])
    assert part.pattern.list_indices().tolist() == expected.tolist()


def largest_allocation(work):
    """Bytes of the largest tensor made meanwhile."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        work()
    return max(event.self_cpu_memory_usage for event in found.events())


def test_nothing_of_the_size_of_a_weight_is_ever_made():
    size = 1200
    network = make_sparse(
        nn.Linear(size, size), density=0.02, settings=SparseSettings(path="sparse")
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
    schedule = Schedule(10**6, every=1, fraction=0.3)
    alternation = Rewiring(network, optimiser, schedule)
    x = torch.randn(4, size)

    def loss():
        return network(x).square().mean()

    def step():
        (loss() + network.kl()).backward()
        optimiser.step()
        alternation.advance(lambda: [loss] * 2)

    step()
    held = network.layers[""].pattern.list_indices()
    assert largest_allocation(step) < 4 * size**2 / 4
    assert not torch.equal(held, network.layers[""].pattern.list_indices())
    network.set_path("dense")
    assert largest_allocation(step) >= 4 * size**2


def test_the_schedule_is_a_falling_cosine_that_ends():
    schedule = Schedule(100, every=10, fraction=0.4, until=0.8)
    found = [schedule.fraction_at(step) for step in range(1, 101)]
    due = [step for step, share in enumerate(found, 1) if share > 0]
    assert due == [10, 20, 30, 40, 50, 60, 70]
    assert found[39] == pytest.approx(0.2)
    with pytest.raises(ArgumentError, match=r"fraction and until must be in \[0, 1\]"):
        Schedule(10, fraction=1.2)


@pytest.mark.parametrize("budget", ["global", "uniform"])
@pytest.mark.parametrize("by", PRUNING_SCORES)
def test_pruning_keeps_the_best_and_the_values(budget, by):
    network = make_sparse(convolutional(), density=1.0)
    less = prune_network(network, 0.25, by=by, budget=budget)
    assert less.count == round(0.25 * network.total)
    assert network.density == 1.0
    for name, part in less.layers.items():
        at = part.pattern.list_indices().long()
        assert torch.equal(part.means, network.layers[name].means[at])
        assert torch.equal(part.log_scales, network.layers[name].log_scales[at])
