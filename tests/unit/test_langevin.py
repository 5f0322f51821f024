"""The chain over weights: its target, what it finds, and that it can be interrupted."""

from __future__ import annotations

import pytest
import torch
from tests.tolerances import Z
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import smidgen
from smidgen import fit, select
from smidgen.affine import coverage
from smidgen.errors import ArgumentError, DataError
from smidgen.fit.chain import Chain, Course
from smidgen.fit.langevin_step import Langevin, Settings
from smidgen.fit.preparation import training_size
from smidgen.largest import overlap
from smidgen.scale_prior import ScalePrior
from smidgen.trainable import Trainable


def linear(weights):
    model = nn.Linear(len(weights), 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(weights)
    return model.to(weights.dtype)


def sparse_task(seed=0, inputs=200, support=10, rows=400):
    """A regression whose weights differ from the pretrained ones in a few places."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=generator)
    base = torch.randn(inputs, generator=generator)
    places = torch.randperm(inputs, generator=generator)[:support]
    moved = base.clone()
    moved[places] += 0.3 * torch.randn(support, generator=generator).sign()
    y = x @ moved + 0.5 * torch.randn(rows, generator=generator)
    order = torch.Generator().manual_seed(seed + 1)
    data = TensorDataset(x, y[:, None])
    loader = DataLoader(data, batch_size=50, shuffle=True, generator=order)
    problem = smidgen.Problem(linear(base), smidgen.Gaussian(1, noise=0.25))
    return problem, loader, set(places.tolist())


def chosen(problem, scores, count):
    share = count / problem.model.weight.numel()
    subset = select.bayestune(problem.model, scores, fraction=share, head="none")
    return set(subset.indices("weight").tolist())


COURSE = {"steps": 1500, "burn_in": 500, "thin": 10}
SHORT = {**COURSE, "temperature": 1.0, "noise_discount": 1.0}


def test_a_known_sparse_support_is_found():
    problem, loader, support = sparse_task()
    scales = fit.langevin(problem, loader, head="none", learning_rate=1e-3, **SHORT)
    found = chosen(problem, scales.means, len(support))
    # As many are chosen as there are, so precision and recall are one number.
    assert len(found & support) / len(support) >= 0.9
    assert scales.overlap(0.05) >= 0.9
    other = fit.langevin(problem, loader, head="none", learning_rate=1e-3, seed=1, **SHORT)
    assert overlap(scales.means, other.means, len(support)) >= 0.9
    # What the data do not ask for stays far nearer than what they do.
    means = scales.means["weight"].flatten()
    inside = means[sorted(support)].mean()
    assert inside > 5 * means[[i for i in range(200) if i not in support]].mean()


def test_the_published_update_does_not_find_it():
    """Its scales are a random walk: a finding about the method that we keep watch on."""
    problem, loader, support = sparse_task()
    scales = fit.langevin(
        problem,
        loader,
        head="none",
        update="published",
        learning_rate=1e-3,
        displacement=True,
        **COURSE,
    )
    found = chosen(problem, scales.means, len(support))
    assert len(found & support) / len(support) <= 0.5
    assert len(chosen(problem, scales.displacement, len(support)) & support) >= 8


def expected(prior, centre, variance, rounding):
    """E of |Δ| and of E[λ | Δ] under N(Δ; centre, variance) × prior, by quadrature."""
    grid = torch.linspace(-6, 6, 24_001, dtype=torch.float64)
    radius = (grid.square() + rounding).sqrt()
    slopes = prior.inverse_mean(radius) * grid / radius
    potential = torch.cumulative_trapezoid(slopes, grid)
    potential = torch.cat([potential.new_zeros(1), potential])
    logs = -potential - (grid - centre).square() / (2 * variance)
    weights = torch.softmax(logs, 0)
    size = grid.abs()
    return (weights * size).sum(), (weights * prior.mean(size)).sum()


@pytest.mark.parametrize("preconditioned", [False, True])
def test_the_marginals_are_those_of_the_posterior(preconditioned):
    """Orthogonal inputs make the weights independent: each has a known density."""
    generator = torch.Generator().manual_seed(3)
    count = 80
    square = torch.randn(count, count, generator=generator, dtype=torch.float64)
    x = 2 * torch.linalg.qr(square).Q
    centre = torch.where(torch.arange(count) < count // 2, 0.0, 1.0).double()
    base = torch.randn(count, generator=generator, dtype=torch.float64)
    loader = [(x, (x @ (base + centre))[:, None])]
    prior = ScalePrior(3.0, 2.0)
    problem = smidgen.Problem(linear(base), smidgen.Gaussian(1))
    # h G is about 0.01 for both: the preconditioner is a number here, of about 1/0.05.
    scale = 0.03 if preconditioned else 1.0
    scales = fit.langevin(
        problem,
        loader,
        head="none",
        prior=prior,
        steps=6000,
        burn_in=500,
        thin=5,
        learning_rate=0.01 * count / 2 * scale,
        temperature=1.0,
        noise_discount=1.0,
        preconditioned=preconditioned,
        num_data=count,
        displacement=True,
    )
    for here, where in ((centre == 0, 0.0), (centre == 1, 1.0)):
        wanted = expected(prior, where, 0.25, 0.005)
        for found, value in zip(
            (scales.displacement["weight"], scales.means["weight"]), wanted, strict=True
        ):
            own = found.flatten()[here]
            error = own.std() / len(own) ** 0.5
            assert abs(own.mean() - value) < Z * error


def test_three_vectors_are_kept_beside_weights_and_gradients():
    problem, _, _ = sparse_task(inputs=50)
    tensors = Trainable(problem.model, select.named(problem.model, "*")).tensors
    base = {"weight": problem.model.weight.detach()}
    prior, course = ScalePrior(), Course(20, 10, 2)
    mover = Langevin(tensors, base, prior, Settings(1e-3), 100, 10, 0)
    chain = Chain(
        problem, tensors, ["weight"], prior, course, mover, keep_displacement=False
    )
    kept = [*mover.memory.values(), *(t for s in chain.sums.values() for t in s.values())]
    assert sum(each.numel() for each in kept) == 3 * 50


@pytest.mark.parametrize("update", ["langevin", "published"])
def test_an_interrupted_chain_goes_on_bitwise(update, tmp_path):
    class Interrupted(Exception):
        pass

    class Stopping(DataLoader):
        left = None

        def __iter__(self):
            for batch in super().__iter__():
                if self.left is not None:
                    self.left -= 1
                    if self.left < 0:
                        raise Interrupted
                yield batch

    def run(stop, checkpoint):
        problem, loader, _ = sparse_task(inputs=30, rows=90)
        generator = torch.Generator().manual_seed(5)
        loader = Stopping(loader.dataset, 20, shuffle=True, generator=generator)
        loader.left = stop
        return fit.langevin(
            problem,
            loader,
            head="none",
            steps=20,
            burn_in=8,
            thin=2,
            temperature=1.0 if update == "langevin" else None,
            update=update,
            checkpoint=checkpoint,
            checkpoint_every=3,
        )

    whole = run(None, None)
    path = tmp_path / "chain.safetensors"
    for stop in (9, 8):
        with pytest.raises(Interrupted):
            run(stop, path)
    found = run(None, path)
    assert torch.equal(found.means["weight"], whole.means["weight"])
    assert found.traces == whole.traces
    assert found.check == whole.check


@pytest.mark.parametrize("update", ["langevin", "published"])
def test_the_model_is_a_guest_on_every_case(case, update, unchanged):
    model, batch = case.make()
    problem = case.problem(model)
    if len(coverage(model).maps) < 2:
        pytest.skip("nothing is left beside the head")
    with unchanged(model):
        size = {"num_data": 8} if update == "langevin" else {}
        scales = fit.langevin(
            problem, [batch], steps=6, burn_in=2, thin=1, update=update, **size
        )
    last = coverage(model).last().parts
    assert scales.means.keys() == coverage(model).universe.keys() - last.keys()
    assert all(each.isfinite().all() for each in scales.means.values())
    subset = select.bayestune(model, scales.means, fraction=0.1)
    assert all(name in subset.parts for name in last)
    told = scales.to_dict()
    assert len(told["traces"]) == 4
    assert {each["distance"] for each in told["check"]} == {1e-5, 1e-4, 1e-3, 1e-2}


def test_a_failing_chain_leaves_the_model_alone(unchanged):
    problem, loader, _ = sparse_task(inputs=10, rows=20)
    batches = list(loader)
    with (
        unchanged(problem.model),
        pytest.raises(ArgumentError, match="num_data must be given"),
    ):
        fit.langevin(problem, batches, head="none")
    batches[0][1][0] = float("inf")
    with unchanged(problem.model), pytest.raises(DataError, match="finite"):
        fit.langevin(problem, batches, head="none", num_data=20)


def test_a_loader_is_left_as_it_was_and_equal_seeds_give_equal_chains():
    problem, loader, _ = sparse_task(inputs=10, rows=20)
    before = loader.generator.get_state()
    few = {"steps": 20, "burn_in": 10, "thin": 5, "head": "none"}
    first, again = (fit.langevin(problem, loader, **few) for _ in range(2))
    assert torch.equal(loader.generator.get_state(), before)
    assert torch.equal(first.means["weight"], again.means["weight"])


def test_the_prior_counts_against_labelled_tokens():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(3, 4)

        def forward(self, x):
            return self.map(x)

    labels = torch.tensor([[0, 1, -100], [2, -100, -100]])
    data = TensorDataset(torch.randn(2, 3, 3), labels)
    problem = smidgen.Problem(Tagger(), smidgen.Categorical(4))
    assert training_size(problem, DataLoader(data, 1), None) == 3
    assert training_size(problem, DataLoader(data, 1), 7) == 7


class Branches(nn.Module):
    """A second map that only some batches run, and a third that none does."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)
        self.third, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        hidden = self.first(x) if x[0, 0] > 0 else self.first(x) + self.second(x)
        return self.head(torch.tanh(hidden))


@pytest.mark.parametrize("burn_in", [3, 4])
def test_maps_that_run_now_and_then_stay_sane(burn_in):
    torch.manual_seed(0)
    model, x = Branches(), torch.randn(6, 4)
    x[:, 0] = x[:, 0].abs()
    y = torch.tensor([0, 1, 0, 1, 0, 1])
    batches = [(x, y), (-x, y)]
    scales = fit.langevin(
        model, batches, num_data=12, steps=20, burn_in=burn_in, thin=1, displacement=True
    )
    moved = {name: float(each.max()) for name, each in scales.displacement.items()}
    # Steps are of the length of the rate, 1e-4, and there are twenty.
    assert 1e-5 < moved["second.weight"] < 1e-2
    assert moved["third.weight"] == 0


def test_outputs_that_depend_on_no_weight_are_refused():
    problem, _, _ = sparse_task(inputs=10, rows=20)
    still = [(torch.zeros(4, 10), torch.ones(4, 1))]
    with pytest.raises(DataError, match="no weight gets a gradient"):
        fit.langevin(problem, still, head="none", num_data=4)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"steps": 10, "burn_in": 10}, "leave two samples .* steps=10, burn_in=10"),
        ({"thin": 0}, "thin=0"),
        ({"learning_rate": 0.0}, "learning_rate must be > 0, got 0.0"),
        ({"temperature": -1.0}, "temperature must be > 0, got -1.0"),
        ({"noise_discount": -1.0}, "noise_discount must be 0 or more, got -1.0"),
        ({"clip": 0.0}, "clip must be > 0, got 0.0"),
        ({"update": "adam"}, "update must be one of .* got 'adam'"),
        ({"head": "first"}, "head must be .* got 'first'"),
        ({"num_data": 0}, "num_data must be 1 or more, got 0"),
    ],
)
def test_arguments_out_of_range_are_named(wrong, said):
    problem, loader, _ = sparse_task(inputs=10, rows=20)
    with pytest.raises(ArgumentError, match=said):
        fit.langevin(problem, loader, **{"head": "none", **wrong})


def test_parts_of_parameters_and_half_precision_are_refused():
    problem, loader, _ = sparse_task(inputs=10, rows=20)
    half = select.weights(problem.model, fraction=0.5)
    with pytest.raises(ArgumentError, match="whole parameters, got a part of 'weight'"):
        fit.langevin(problem, loader, among=half, head="none")
    with pytest.raises(ArgumentError, match="among must hold more than the head"):
        fit.langevin(problem, loader)
    model = problem.model.to(torch.bfloat16)
    with pytest.raises(ArgumentError, match="fp32 or fp64"):
        fit.langevin(model, loader, head="none")
