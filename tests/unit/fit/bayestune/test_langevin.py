"""The chain over weights: its target, what it finds, and that it can be interrupted."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import smidgen
from smidgen import fit, select
from smidgen.errors import ArgumentError, DataError, StoreError
from smidgen.fit.bayestune.chain import Chain, ChainSchedule
from smidgen.fit.bayestune.langevin import schedule_chain
from smidgen.fit.bayestune.scale_prior import ScalePrior
from smidgen.fit.bayestune.step import Langevin, StepSettings
from smidgen.fit.data_size import count_training_data
from smidgen.weights.affine import coverage
from smidgen.weights.top_k import top_k_overlap
from smidgen.weights.vector import SubsetVector
from tests.support.settings import grouped
from tests.support.tolerances import COARSE, SHORT_STEP, Z


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
    scales = fit.langevin(
        problem,
        loader,
        **grouped(fit.LangevinSettings, head="none", learning_rate=1e-3, **SHORT),
    )
    found = chosen(problem, scales.means, len(support))
    # As many are chosen as there are, so precision and recall are one number.
    assert len(found & support) / len(support) >= 0.9
    assert scales.overlap(0.05) >= 0.9
    other = fit.langevin(
        problem,
        loader,
        seed=1,
        **grouped(fit.LangevinSettings, head="none", learning_rate=1e-3, **SHORT),
    )
    assert top_k_overlap(scales.means, other.means, len(support)) >= 0.9
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
        **grouped(
            fit.LangevinSettings,
            head="none",
            update="published",
            learning_rate=1e-3,
            displacement=True,
            **COURSE,
        ),
    )
    found = chosen(problem, scales.means, len(support))
    assert len(found & support) / len(support) <= 0.5
    assert len(chosen(problem, scales.displacement, len(support)) & support) >= 8


def expected(prior, centre, variance, rounding, power=1.0):
    """E of |Δ| and of E[λ | Δ] under (N(Δ; centre, variance) × prior)^power."""
    grid = torch.linspace(-6, 6, 24_001, dtype=torch.float64)
    radius = (grid.square() + rounding).sqrt()
    slopes = prior.inverse_mean(radius) * grid / radius
    potential = torch.cumulative_trapezoid(slopes, grid)
    potential = torch.cat([potential.new_zeros(1), potential])
    logs = -potential - (grid - centre).square() / (2 * variance)
    weights = torch.softmax(power * logs, 0)
    size = grid.abs()
    return (weights * size).sum(), (weights * prior.mean(size)).sum()


@pytest.mark.parametrize(
    ("preconditioned", "temperature", "discount", "copies"),
    [(False, 1.0, 1.0, 1), (True, 1.0, 1.0, 1), (False, 0.4, 0.7, 3)],
)
def test_the_marginals_are_those_of_the_posterior(
    preconditioned, temperature, discount, copies
):
    """Orthogonal inputs make the weights independent: each has a known density.

    Copies of the batch are more data without noise of the gradient: N is not the batch's.
    """
    generator = torch.Generator().manual_seed(3)
    count = 80
    square = torch.randn(count, count, generator=generator, dtype=torch.float64)
    x = 2 * torch.linalg.qr(square).Q
    centre = torch.where(torch.arange(count) < count // 2, 0.0, 1.0).double()
    base = torch.randn(count, generator=generator, dtype=torch.float64)
    loader = [(x, (x @ (base + centre))[:, None])] * copies
    prior = ScalePrior(3.0, 2.0)
    problem = smidgen.Problem(linear(base), smidgen.Gaussian(1))
    # h G is about 0.01, or as much less as the variance is: the preconditioner is a number
    # here, of about 1/0.05.
    length = 0.01 * temperature / copies
    scale = 0.03 if preconditioned else 1.0
    scales = fit.langevin(
        problem,
        loader,
        settings=fit.LangevinSettings(
            head="none",
            prior=prior,
            steps=6000,
            burn_in=500,
            thin=5,
            learning_rate=length * count * copies / (2 * temperature) * scale,
            temperature=temperature,
            noise_discount=discount,
            preconditioned=preconditioned,
            num_data=count * copies,
            displacement=True,
        ),
    )
    for here, where in ((centre == 0, 0.0), (centre == 1, 1.0)):
        variance = 0.25 * temperature / copies
        wanted = expected(prior, where, variance, length / 2, discount**-2)
        for found, value in zip(
            (scales.displacement["weight"], scales.means["weight"]), wanted, strict=True
        ):
            own = found.flatten()[here]
            error = own.std() / len(own) ** 0.5
            assert abs(own.mean() - value) < Z * error


class ManyNetworks(nn.Module):
    """Independent tanh networks of two hidden units, one for each output."""

    def __init__(self, count):
        super().__init__()
        start = torch.tensor([[0.8, -0.4], [0.3, 0.9]], dtype=torch.float64)
        self.first = nn.Parameter(start.repeat(count, 1, 1))
        self.second = nn.Parameter(torch.tensor([[1.0, -0.7]]).double().repeat(count, 1))

    def forward(self, x):
        return torch.einsum(
            "brh,rh->br",
            torch.tanh(torch.einsum("bi,rhi->brh", x, self.first)),
            self.second,
        )


def by_metropolis(model, x, y, prior, steps, burn_in):
    """The mean |Δ| of every weight of each network, by random-walk Metropolis."""
    generator = torch.Generator().manual_seed(11)
    base = [p.detach().clone() for p in model.parameters()]
    count = len(base[0])
    sizes = torch.linspace(0, 12, 24_001, dtype=torch.float64)
    slopes = torch.cumulative_trapezoid(prior.inverse_mean(sizes[1:]), sizes[1:])
    table = torch.cat([sizes.new_zeros(2), slopes])

    def score(tensors):
        outputs = torch.func.functional_call(
            model, dict(zip(("first", "second"), tensors, strict=True)), (x,)
        )
        found = -0.5 * (outputs - y).square().sum(0)
        for tensor, start in zip(tensors, base, strict=True):
            places = ((tensor - start).abs() / 12 * 24_000).long().clamp(max=24_000)
            found = found - table[places].flatten(1).sum(1)
        return found

    now, totals = base, [torch.zeros_like(each) for each in base]
    known = score(now)
    for step in range(steps):
        noise = [
            torch.randn(each.shape, generator=generator, dtype=each.dtype) for each in now
        ]
        then = [a + 0.25 * b for a, b in zip(now, noise, strict=True)]
        found = score(then)
        drawn = torch.rand(count, generator=generator, dtype=torch.float64)
        taken = drawn.log() < found - known
        known = torch.where(taken, found, known)
        now = [
            torch.where(taken.view(-1, *[1] * (a.dim() - 1)), a, b)
            for a, b in zip(then, now, strict=True)
        ]
        if step >= burn_in:
            for total, each, start in zip(totals, now, base, strict=True):
                total += (each - start).abs() / (steps - burn_in)
    return dict(zip(("first", "second"), totals, strict=True))


def test_the_marginals_of_a_small_network_are_those_of_a_long_reference_run():
    """Metropolis knows neither gradients nor steps, and is exact in the long run."""
    count, rows = 150, 12
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    y = (x[:, :1] - 0.5 * x[:, 1:]).repeat(1, count)
    model, prior = ManyNetworks(count), ScalePrior(3.0, 6.0)
    wanted = by_metropolis(model, x, y, prior, steps=4000, burn_in=1000)
    scales = fit.langevin(
        smidgen.Problem(model, smidgen.Gaussian(count)),
        [(x, y)],
        subset=select.named(model, "*"),
        settings=fit.LangevinSettings(
            head="none",
            prior=prior,
            steps=4000,
            burn_in=1000,
            thin=5,
            learning_rate=0.005 * rows / 2,
            temperature=1.0,
            noise_discount=1.0,
            preconditioned=False,
            num_data=rows,
            displacement=True,
        ),
    )
    for name, reference in wanted.items():
        found = scales.displacement[name]
        error = ((found.var(0) + reference.var(0)) / count).sqrt()
        apart = (found.mean(0) - reference.mean(0)).abs()
        assert (apart < Z * error + SHORT_STEP["rel"] * reference.mean(0)).all()


@pytest.mark.parametrize(
    ("discount", "distances"), [(1.0, (5e-4, 1e-3, 2e-3, 1e-2)), (0.1, (1e-5, 3e-5, 1e-3))]
)
def test_without_data_weights_move_as_the_check_foresees(discount, distances):
    """The default prior, whose spike no step can see: not the stated law, by far."""
    count, prior, course = 4000, ScalePrior(), ChainSchedule(3000, 1, 1)
    tensors = {"weight": torch.zeros(count, dtype=torch.float64)}
    base = {"weight": torch.zeros(count, dtype=torch.float64)}
    # h G is 1e-6, the length of a step a thousandth.
    settings = StepSettings(0.5e-6, 1.0, discount, preconditioned=False)
    mover = Langevin(tensors, base, prior, settings, 1, course.burn_in, 0)
    found = torch.zeros(len(distances), dtype=torch.float64)
    for step in range(1, course.steps + 1):
        tensors["weight"].grad = torch.zeros(count, dtype=torch.float64)
        mover.move(step)
        if step > 1000 and not step % 10:
            sizes = tensors["weight"].abs()
            found += torch.tensor(
                [float((sizes > each).double().mean()) for each in distances]
            )
    expected = mover.expected_tail(distances)
    # Steps of the length of the spike's own rounding are not short ones.
    assert (found / 200).tolist() == pytest.approx(expected, rel=COARSE["rel"])
    if discount == 1:
        assert expected[1] > 20 * prior.tail(distances[1])


def test_three_vectors_are_kept_beside_weights_and_gradients():
    problem, _, _ = sparse_task(inputs=50)
    tensors = SubsetVector(problem.model, select.named(problem.model, "*")).tensors
    base = {"weight": problem.model.weight.detach()}
    prior, course = ScalePrior(), ChainSchedule(20, 10, 2)
    mover = Langevin(tensors, base, prior, StepSettings(1e-3), 100, 10, 0)
    chain = Chain(
        problem, tensors, ["weight"], prior, course, mover, keep_displacement=False
    )
    kept = [*mover.memory.values(), *(t for s in chain.sums.values() for t in s.values())]
    assert sum(each.numel() for each in kept) == 3 * 50


def large_storages():
    """Storages of 2 MB or more by address; half a vector of a million counts as well."""
    gc.collect()
    # Not isinstance: it would ask deprecated objects of torch for their class, and fake
    # tensors of other tests have no address.
    kinds = (torch.Tensor, nn.Parameter)
    tensors = [each for each in gc.get_objects() if type(each) in kinds]
    storages = [each.untyped_storage() for each in tensors]
    return {each.data_ptr(): each for each in storages if each.nbytes() >= 2e6}


def test_no_other_vector_is_alive_while_a_chain_runs():
    """Whatever holds it: storages as large as the weights, counted within a pass."""
    kept = large_storages()  # of other tests, held so that no address is used anew
    model = nn.Linear(1000, 1000, bias=False)
    seen, alive = [], []

    def forward(network, batch):
        seen.append(1)
        if len(seen) == 6:
            alive.append(len(large_storages().keys() - kept.keys()))
        return network(batch[0])

    batch = (torch.ones(2, 1000), torch.zeros(2, 1000))
    problem = smidgen.Problem(model, smidgen.Gaussian(1000), forward)
    fit.langevin(
        problem,
        [batch],
        settings=fit.LangevinSettings(head="none", num_data=2, steps=6, burn_in=2, thin=1),
    )
    # The model's own weights, those that move, and three.
    assert alive == [5]


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
            checkpoint=checkpoint,
            settings=fit.LangevinSettings(
                head="none",
                steps=20,
                burn_in=8,
                thin=2,
                temperature=1.0 if update == "langevin" else None,
                update=update,
                checkpoint_every=3,
            ),
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
    if len(coverage(model).layers) < 2:
        pytest.skip("nothing is left beside the head")
    with unchanged(model):
        size = {"num_data": 8} if update == "langevin" else {}
        scales = fit.langevin(
            problem,
            [batch],
            **grouped(
                fit.LangevinSettings, steps=6, burn_in=2, thin=1, update=update, **size
            ),
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
        fit.langevin(problem, batches, settings=fit.LangevinSettings(head="none"))
    batches[0][1][0] = float("inf")
    with unchanged(problem.model), pytest.raises(DataError, match="finite"):
        fit.langevin(
            problem, batches, settings=fit.LangevinSettings(head="none", num_data=20)
        )


def test_a_loader_is_left_as_it_was_and_equal_seeds_give_equal_chains():
    problem, loader, _ = sparse_task(inputs=10, rows=20)
    before = loader.generator.get_state()
    few = {"steps": 20, "burn_in": 10, "thin": 5, "head": "none"}
    first, again = (
        fit.langevin(problem, loader, **grouped(fit.LangevinSettings, **few))
        for _ in range(2)
    )
    assert torch.equal(loader.generator.get_state(), before)
    assert torch.equal(first.means["weight"], again.means["weight"])


def test_a_loader_without_a_generator_resumes_bitwise_too(tmp_path):
    problem, loader, _ = sparse_task(inputs=10, rows=20)
    plain = DataLoader(loader.dataset, 5, shuffle=True)
    path = tmp_path / "chain.safetensors"
    few = {"steps": 14, "burn_in": 4, "thin": 2, "head": "none"}
    whole = fit.langevin(problem, plain, **grouped(fit.LangevinSettings, **few))

    class Stopped(Exception):
        pass

    seen = []

    def forward(model, batch):
        seen.append(1)
        if len(seen) > 9:
            raise Stopped
        return model(batch[0])

    stopping = smidgen.Problem(problem.model, problem.likelihood, forward)
    saving = {"checkpoint": path, "checkpoint_every": 3}
    with pytest.raises(Stopped):
        fit.langevin(stopping, plain, **grouped(fit.LangevinSettings, **few, **saving))
    torch.rand(3)
    found = fit.langevin(problem, plain, **grouped(fit.LangevinSettings, **few, **saving))
    assert torch.equal(found.means["weight"], whole.means["weight"])
    smaller = DataLoader(loader.dataset, 4, shuffle=True)
    with pytest.raises(StoreError, match="batches is 4, here 5"):
        fit.langevin(problem, smaller, **grouped(fit.LangevinSettings, **few, **saving))


def test_what_is_reported_is_of_the_fraction_that_was_asked_for():
    problem, loader, _ = sparse_task(inputs=40, rows=40)
    scales = fit.langevin(
        problem,
        loader,
        settings=fit.LangevinSettings(head="none", steps=40, burn_in=20, thin=2),
    )
    told = scales.to_dict(0.5)
    assert told["fraction"] == told["chance"] == scales.chance(0.5) == 0.5
    assert told["overlap_of_halves"] == scales.overlap(0.5)
    assert told["acceptance"] == scales.acceptance
    apart = [abs(each["chain"] - each["prior"]) for each in told["check"]]
    assert 1 - max(apart) == scales.acceptance


def test_chains_on_other_data_agree_where_there_is_something_to_find():
    problem, loader, support = sparse_task()
    x, y = loader.dataset.tensors
    settings = fit.LangevinSettings(head="none", learning_rate=1e-3, **SHORT)

    def found(targets):
        halves = [DataLoader(TensorDataset(x[i::2], targets[i::2]), 50) for i in range(2)]
        return fit.agreement(problem, *halves, fraction=0.05, settings=settings)

    told = found(y)
    assert told.chance == 0.05
    assert told.overlap >= 0.8
    # The pretrained weights' own outputs and noise: nothing is to be found.
    with torch.no_grad():
        still = problem.model(x)
    noise = torch.randn(still.shape, generator=torch.Generator().manual_seed(9))
    assert found(still + 0.5 * noise).overlap <= 0.5
    assert told.to_dict() == {"fraction": 0.05, "overlap": told.overlap, "chance": 0.05}
    with pytest.raises(ArgumentError, match=r"fraction must be in \(0, 1\], got 2"):
        fit.agreement(problem, loader, loader, fraction=2)


def test_halves_of_one_chain_agree_on_random_labels_too():
    """Why their overlap is no evidence: a finding about the defaults, watched."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 2))
    x = torch.randn(200, 20, generator=generator)
    data = TensorDataset(x, torch.randint(0, 2, (200,), generator=generator))
    scales = fit.langevin(
        model,
        DataLoader(data, 50),
        settings=fit.LangevinSettings(steps=200, burn_in=100, thin=10),
    )
    assert scales.overlap(0.05) > 0.9


@pytest.mark.parametrize(
    "own",
    [
        {"temperature": 1.0},
        {"noise_discount": 0.0},
        {"preconditioned": False},
        {"clip": 1.0},
        {"num_data": 5},
    ],
)
def test_the_published_update_refuses_what_it_would_ignore(own):
    problem, loader, _ = sparse_task(inputs=10, rows=20)
    with pytest.raises(ArgumentError, match=f"{next(iter(own))} must be left out"):
        fit.langevin(
            problem,
            loader,
            **grouped(fit.LangevinSettings, head="none", update="published", **own),
        )


def test_broken_gradients_and_weights_are_called_so():
    problem, loader, _ = sparse_task(inputs=10, rows=20)

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x.clone()

        @staticmethod
        def backward(_, gradient):
            return gradient * torch.nan

    def run(until):
        seen = []

        def forward(model, batch):
            seen.append(1)
            outputs = model(batch[0])
            return outputs if len(seen) <= until else Broken.apply(outputs)

        broken = smidgen.Problem(problem.model, problem.likelihood, forward)
        fit.langevin(
            broken,
            loader,
            settings=fit.LangevinSettings(head="none", steps=6, burn_in=2, thin=2),
        )

    with pytest.raises(DataError, match="batch 1: the training gradients are not finite"):
        run(0)
    # In the last step, after which no loss is computed.
    with pytest.raises(DataError, match="the training gradients are not finite"):
        run(5)


def test_a_stream_without_a_length_will_do():
    class Stream(IterableDataset):
        def __iter__(self):
            yield from zip(torch.eye(4), torch.ones(4, 1), strict=True)

    problem = smidgen.Problem(linear(torch.zeros(4)), smidgen.Gaussian(1))
    loader = DataLoader(Stream(), 2)
    few = {"steps": 6, "burn_in": 2, "thin": 2, "head": "none", "num_data": 4}
    assert fit.langevin(problem, loader, **grouped(fit.LangevinSettings, **few)).size == 4


def test_the_prior_counts_against_labelled_tokens():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x):
            return self.layer(x)

    labels = torch.tensor([[0, 1, -100], [2, -100, -100]])
    data = TensorDataset(torch.randn(2, 3, 3), labels)
    problem = smidgen.Problem(Tagger(), smidgen.Categorical(4))
    assert count_training_data(problem, DataLoader(data, 1), None) == 3
    assert count_training_data(problem, DataLoader(data, 1), 7) == 7


def test_a_head_that_is_registered_first_is_the_last_map():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.classifier = nn.Linear(5, 2)
            self.enter, self.body = nn.Linear(3, 4), nn.Linear(4, 5)

        def forward(self, x):
            return self.classifier(self.body(self.enter(x).tanh()).tanh())

    data = TensorDataset(torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1]))
    few = {"steps": 4, "burn_in": 2, "thin": 1}
    model = Backwards()
    for head in ("last", select.named(model, ["classifier*"])):
        found = fit.langevin(
            model, DataLoader(data, 3), **grouped(fit.LangevinSettings, head=head, **few)
        )
        parts = ("body.bias", "body.weight", "enter.bias", "enter.weight")
        assert sorted(found.means) == list(parts)
    # Told without data, a choice by these scores is refused once data are seen.
    tuned = {"settings": fit.FinetuneSettings(epochs=1)}
    chosen = select.bayestune(model, found.means, fraction=0.2)
    with pytest.raises(ArgumentError, match="got one without 'classifier'"):
        fit.finetune(model, DataLoader(data, 3), chosen, **tuned)
    seen = select.bayestune(model, found.means, fraction=0.2, batches=DataLoader(data, 3))
    delta = fit.finetune(model, DataLoader(data, 3), seen, **tuned).delta
    assert set(delta.replaced) == {"classifier.weight", "classifier.bias"}


def test_the_prior_counts_against_labelled_rows():
    labels = torch.tensor([0, -100, 1, -100])
    data = TensorDataset(torch.randn(4, 3), labels)
    problem = smidgen.Problem(nn.Linear(3, 2), smidgen.Categorical(2))
    assert count_training_data(problem, DataLoader(data, 2), None) == 2


class Branches(nn.Module):
    """A second layer that only some batches run, and a third that none does."""

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
        model,
        batches,
        settings=fit.LangevinSettings(
            num_data=12, steps=20, burn_in=burn_in, thin=1, displacement=True
        ),
    )
    moved = {name: float(each.max()) for name, each in scales.displacement.items()}
    # Steps are of the length of the rate, 1e-4, and there are twenty.
    assert 1e-5 < moved["second.weight"] < 1e-2
    assert moved["third.weight"] == 0


def test_outputs_that_depend_on_no_weight_are_refused():
    problem, _, _ = sparse_task(inputs=10, rows=20)
    still = [(torch.zeros(4, 10), torch.ones(4, 1))]
    with pytest.raises(DataError, match="no weight gets a gradient"):
        fit.langevin(problem, still, settings=fit.LangevinSettings(head="none", num_data=4))


@pytest.mark.parametrize(
    ("steps", "samples", "course"),
    [
        # A length that the samples divide; one they do not; one shorter than they need.
        (800, 20, (800, 400, 20)),
        (75, 20, (75, 37, 1)),
        (79, 20, (79, 39, 2)),
        (188.4, 20, (188, 94, 4)),
        (3, 20, (40, 20, 1)),
    ],
)
def test_half_of_a_chain_is_burn_in_and_the_rest_holds_its_samples(steps, samples, course):
    found = schedule_chain(steps, samples)
    assert found == ChainSchedule(*course)
    assert samples <= found.samples < 2 * samples


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
        ({"checkpoint_every": 0}, "checkpoint_every must be 1 or more, got 0"),
    ],
)
def test_arguments_out_of_range_are_named(wrong, said):
    problem, loader, _ = sparse_task(inputs=10, rows=20)
    with pytest.raises(ArgumentError, match=said):
        fit.langevin(
            problem, loader, **grouped(fit.LangevinSettings, **{"head": "none", **wrong})
        )


def test_parts_of_parameters_and_half_precision_are_refused():
    problem, loader, _ = sparse_task(inputs=10, rows=20)
    half = select.weights(problem.model, fraction=0.5)
    with pytest.raises(ArgumentError, match="whole parameters, got a part of 'weight'"):
        fit.langevin(
            problem, loader, subset=half, settings=fit.LangevinSettings(head="none")
        )
    with pytest.raises(ArgumentError, match="subset must hold more than the head"):
        fit.langevin(problem, loader)
    model = problem.model.to(torch.bfloat16)
    with pytest.raises(ArgumentError, match="fp32 or fp64"):
        fit.langevin(model, loader, settings=fit.LangevinSettings(head="none"))
