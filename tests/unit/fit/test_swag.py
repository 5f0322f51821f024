"""SWAG: moments, covariance and samples against brute force, theory and plain SGD."""

from __future__ import annotations

import json
from copy import deepcopy
from itertools import cycle

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import smidgen
from smidgen.errors import (
    ArgumentError,
    DataError,
    SmidgenWarning,
    StoreError,
    SubsetError,
)
from smidgen.fit import SwagCollector, SwagSettings, swag
from smidgen.fit.calibration.samples import HeldOut
from smidgen.outputs.likelihood import Categorical
from smidgen.posterior.swag import Snapshots, SwagPosterior
from smidgen.runtime.artifact import fill_folder
from smidgen.runtime.reading import read_safetensors
from smidgen.weights.subset import Entries, Whole
from smidgen.weights.vector import SubsetVector
from tests.support.cases import Case, ConvNet, OneBlock, images, mlp, padded_tokens, vectors
from tests.support.settings import grouped
from tests.support.tolerances import EXACT, SINGLE, Z

ONE_BLOCK = Case("one-block", OneBlock, 3, padded_tokens)


def split(batch, size=2):
    """Small batches of a big one, so that epochs have several steps."""
    count = len(next(iter(batch.values()))) if isinstance(batch, dict) else len(batch[0])
    places = [slice(i, i + size) for i in range(0, count, size)]
    if isinstance(batch, dict):
        return [{k: v[each] for k, v in batch.items()} for each in places]
    return [tuple(v[each] for v in batch) for each in places]


def all_parameters(model):
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def drawn_snapshots(count, size, offset=0.0):
    generator = torch.Generator().manual_seed(0)
    return offset + torch.randn(count, size, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("count", [3, 7, 20, 21, 50])
def test_moments_are_those_of_the_stored_snapshots(count):
    values = drawn_snapshots(count, 6, offset=3.0)
    running = Snapshots(6, 20, "low-rank", values[0])
    for each in values:
        running.add(each)
    mean, variance, deviations = running.moments()
    torch.testing.assert_close(mean, values.mean(0), **EXACT)
    torch.testing.assert_close(variance, values.var(0, correction=0), **EXACT)
    columns = [values[i] - values[: i + 1].mean(0) for i in range(count)][-20:]
    assert len(deviations) == min(count, 20)
    found = sorted(deviations.tolist())
    torch.testing.assert_close(
        torch.tensor(found), torch.tensor(sorted(torch.stack(columns).tolist())), **SINGLE
    )


def test_small_deviations_of_large_fp32_weights_are_not_lost():
    values = 1 + 1e-4 * drawn_snapshots(200, 5)
    running = Snapshots(5, 20, "diagonal", values[0].float())
    for each in values.float():
        running.add(each)
    _, variance, none = running.moments()
    wanted = values.float().double().var(0, correction=0)
    torch.testing.assert_close(variance.double(), wanted, rtol=1e-2, atol=0)
    assert none is None


def posterior_of(spread, *, size=5, snapshots=12, rank=4):
    values = drawn_snapshots(snapshots, size)
    running = Snapshots(size, rank, spread, values[0])
    for each in values:
        running.add(each)
    mean, variance, deviations = running.moments()
    subset = smidgen.Subset({"weight": (size,)}, {"weight": Whole()})
    return SwagPosterior(
        subset=subset,
        likelihood=smidgen.Categorical(2),
        mean=mean,
        variance=variance,
        deviations=deviations,
        fingerprint="hash",
        num_data=0,
        snapshots=snapshots,
    )


@pytest.mark.parametrize("spread", ["low-rank", "diagonal"])
def test_samples_have_the_stated_mean_and_covariance(spread):
    posterior = posterior_of(spread)
    count = 4000
    generators = [torch.Generator().manual_seed(seed) for seed in range(count)]
    drawn = torch.stack(list(posterior.sample_weights(generators)))
    stated = posterior.covariance_matrix()
    scale = stated.diagonal()
    assert ((drawn.mean(0) - posterior.mean).abs() <= Z * (scale / count).sqrt()).all()
    centred = drawn - posterior.mean
    found = centred.T @ centred / count
    # Of Gaussians: Var[x_i x_j] = C_ii C_jj + C_ij².
    error = ((scale[:, None] * scale + stated.square()) / count).sqrt()
    assert ((found - stated).abs() <= Z * error).all()


def test_without_a_spread_every_sample_is_the_mean():
    posterior = posterior_of("none")
    (drawn,) = posterior.sample_weights([torch.Generator().manual_seed(1)])
    assert torch.equal(drawn, posterior.mean)
    assert not posterior.covariance_matrix().any()


def test_the_low_rank_covariance_is_the_papers_equation():
    posterior = posterior_of("low-rank")
    wanted = torch.zeros(5, 5, dtype=torch.float64)
    for i in range(5):
        for j in range(5):
            for column in posterior.deviations:
                wanted[i, j] += column[i] * column[j] / (2 * (4 - 1))
        wanted[i, i] += posterior.variance[i] / 2
    torch.testing.assert_close(posterior.covariance_matrix(), wanted, **EXACT)


class NoisyTargets:
    """A loader of fresh targets y ~ N(0, spread²) for the input one, a batch a step."""

    def __init__(self, spread, steps):
        self.spread, self.steps = spread, steps

    def __iter__(self):
        generator = torch.Generator().manual_seed(5)
        for _ in range(self.steps):
            y = torch.randn(1, 3, dtype=torch.float64, generator=generator)
            yield torch.ones(1, 1, dtype=torch.float64), self.spread * y


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_on_a_quadratic_with_known_noise_the_variance_is_the_theorys(momentum):
    """Loss ½(w − y)², so curvature 1 and gradient noise s²: for heavy-ball SGD of rate η

    Var[w] = η s² (1 + μ) / ((1 − μ) (2(1 + μ) − η)).
    """
    rate, spread, steps = 0.1, 0.7, 8000
    model = nn.Linear(1, 3, bias=False).double()
    nn.init.zeros_(model.weight)
    problem = smidgen.Problem(model, smidgen.Gaussian(3))
    subset = smidgen.Subset(all_parameters(model), {"weight": Whole()})
    found = swag(
        problem,
        NoisyTargets(spread, steps),
        subset,
        settings=SwagSettings(
            learning_rate=rate,
            steps=steps,
            every=1,
            burn_in=500,
            rank=20,
            momentum=momentum,
            weight_decay=0.0,
        ),
    )
    below = (1 - momentum) * (2 * (1 + momentum) - rate)
    wanted = rate * spread**2 * (1 + momentum) / below
    # Iterates forget in (1 − μ)/η steps or fewer, so this many are as good as independent.
    independent = (steps - 500) * rate / 2
    assert (found.variance - wanted).abs().max() < Z * wanted * (2 / independent) ** 0.5
    assert (found.mean).abs().max() < Z * (wanted / independent) ** 0.5
    # The diagonal half and the low-rank half each stand for half of it.
    stated = found.covariance_matrix().diagonal()
    assert ((stated > 0.5 * wanted) & (stated < 2 * wanted)).all()


def plain_sgd(model, batches, subset, *, steps, every, rate, momentum, decay):
    """The same descent by torch.optim.SGD on all weights, with all others put back."""
    copy = deepcopy(model)
    trained = {n: p.detach().clone() for n, p in copy.named_parameters()}
    chosen = {n: subset.indices(n) for n in subset.parts}
    optimiser = torch.optim.SGD(
        [p for n, p in copy.named_parameters() if n in chosen],
        lr=rate,
        momentum=momentum,
        weight_decay=decay,
    )
    seen = []
    for step in range(steps):
        batch = batches[step % len(batches)]
        optimiser.zero_grad()
        logits = Case.forward(copy, batch)
        nn.functional.cross_entropy(logits, batch["labels"]).backward()
        optimiser.step()
        with torch.no_grad():
            for name, parameter in copy.named_parameters():
                kept = trained[name].clone()
                if name in chosen:
                    places = chosen[name]
                    kept.view(-1)[places] = parameter.flatten()[places]
                parameter.copy_(kept)
        if (step + 1) % every == 0:
            flat = [
                dict(copy.named_parameters())[n].flatten()[i] for n, i in chosen.items()
            ]
            seen.append(torch.cat(flat).detach())
    return torch.stack(seen)


@pytest.mark.parametrize("kind", ["weights", "block", "module", "norm"])
def test_the_iterates_are_those_of_torchs_sgd(kind, unchanged):
    model, batch = ONE_BLOCK.make()
    batches = split(batch)
    universe = all_parameters(model)
    subset = {
        "weights": smidgen.select.weights(model, fraction=0.2),
        "block": smidgen.select.sparse_kfac(model, percent=40),
        "module": smidgen.select.modules(model, count=1),
        "norm": smidgen.Subset(
            universe,
            {
                "norm.weight": Whole(),
                "norm.bias": Whole(),
                "embed.weight": Entries(torch.tensor([7, 9])),
            },
        ),
    }[kind]
    options = {"steps": 23, "every": 3, "momentum": 0.9}
    with unchanged(model):
        found = swag(
            model,
            batches,
            subset,
            **grouped(
                SwagSettings, learning_rate=0.05, weight_decay=0.01, rank=4, **options
            ),
        )
    wanted = plain_sgd(model, batches, subset, rate=0.05, decay=0.01, **options)
    assert found.snapshots == 7  # 23 steps, though an epoch has two
    torch.testing.assert_close(found.mean, wanted.mean(0), **EXACT)
    torch.testing.assert_close(found.variance, wanted.var(0, correction=0), **EXACT)
    last = [wanted[i] - wanted[: i + 1].mean(0) for i in range(3, 7)]
    gram = torch.stack(last)
    torch.testing.assert_close(
        found.deviations.T @ found.deviations, gram.T @ gram, **EXACT
    )
    assert found.floats == (4 + 2) * subset.size


@pytest.mark.parametrize(
    ("covariance", "copies"), [("low-rank", 7), ("diagonal", 2), ("none", 1)]
)
def test_the_state_is_rank_plus_two_numbers_a_weight(covariance, copies):
    model, batch = ONE_BLOCK.make()
    subset = smidgen.select.sparse_kfac(model, percent=40)
    found = swag(
        model,
        split(batch),
        subset,
        settings=SwagSettings(steps=30, every=2, rank=5, covariance=covariance),
    )
    assert found.covariance == covariance
    assert found.floats == copies * subset.size
    (drawn,) = found.sampler(model)([torch.Generator().manual_seed(0)])
    assert set(drawn) == set(subset.parts)
    for name, parameter in model.named_parameters():
        frozen = torch.ones(parameter.numel(), dtype=torch.bool)
        frozen[subset.indices(name)] = False
        now = drawn.get(name, parameter.detach()).flatten()
        # Everything else is bitwise what it was.
        assert torch.equal(now[frozen], parameter.detach().flatten()[frozen])
        if name in subset.parts and covariance != "none":
            assert (now[~frozen] != parameter.detach().flatten()[~frozen]).any()


def test_convolutions_and_any_likelihood():
    for kind in ("categorical", "bernoulli", "gaussian"):
        case = Case("conv", ConvNet, 2, images, kind)
        model, batch = case.make()
        subset = smidgen.select.sparse_kfac(model, percent=60)
        found = swag(
            case.problem(model),
            split(batch),
            subset,
            settings=SwagSettings(steps=20, every=2, rank=3),
        )
        tuned = smidgen.calibrate(found, case.problem(model), [batch])
        assert tuned.calibration.chosen_nll <= tuned.calibration.nll
        predictive = smidgen.predict(tuned, model, batch)
        nll = float(smidgen.evaluate.nll(predictive, batch[1]).mean())
        assert nll == pytest.approx(tuned.calibration.chosen_nll, rel=1e-9)


def test_a_regression_has_its_noise_fitted():
    case = Case("mlp", mlp, 1, vectors, "gaussian")
    model, _ = case.make()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, dtype=torch.float64, generator=generator)
    noise = torch.randn(60, 1, dtype=torch.float64, generator=generator)
    y = model(x).detach() + 0.1 * noise
    train, validation = split((x[:40], y[:40]), 8), [(x[40:], y[40:])]
    subset = smidgen.select.last_layer(model)
    plain = {"learning_rate": 1e-3, "steps": 20, "every": 2, "rank": 3}
    problem = case.problem(model)
    alone = swag(problem, train, subset, **grouped(SwagSettings, **plain))
    assert alone.likelihood.noise == pytest.approx(
        residual_at_mean(alone, model, x[:40], y[:40]), rel=1e-9
    )
    # A loader without an end is read four times, as often as SGD did: 20 steps of 5.
    endless = swag(
        problem, Repeated(train), subset, **grouped(SwagSettings, **plain)
    ).likelihood.noise
    assert endless == pytest.approx(alone.likelihood.noise, rel=1e-9)
    held = swag(
        problem, train, subset, validation=validation, **grouped(SwagSettings, **plain)
    )
    tuned = smidgen.calibrate(held, problem, validation)
    assert held.likelihood == tuned.likelihood
    rates = {**plain, "learning_rate": [1e-3, 1e-2], "trial_steps": 20}
    chosen = swag(
        problem, train, subset, validation=validation, **grouped(SwagSettings, **rates)
    )
    assert dict(chosen.rates)[1e-3] == pytest.approx(tuned.calibration.chosen_nll, rel=1e-9)


def residual_at_mean(posterior, model, x, y):
    """The mean squared training residual at the mean of a posterior over the last layer."""
    twin = deepcopy(model)
    end = list(twin.parameters())[-2:]
    weight, bias = posterior.mean.split([p.numel() for p in end])
    with torch.no_grad():
        end[0].copy_(weight.view(end[0].shape))
        end[1].copy_(bias)
        return float((y - twin(x)).square().mean())


def test_the_noise_is_that_of_the_mean_and_not_of_where_sgd_began():
    """An untrained head: SGD goes a long way from residuals that tell nothing."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(200, 4, generator=generator)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5], [1.5]])
    y = y + 0.3 * torch.randn(200, 1, generator=generator)
    model = nn.Sequential(nn.Identity(), nn.Linear(4, 1))
    nn.init.zeros_(model[1].weight)
    found = swag(
        model,
        split((x, y), 20),
        smidgen.select.last_layer(model),
        settings=SwagSettings(
            steps=300, burn_in=150, learning_rate=0.02, momentum=0.5, weight_decay=0.0
        ),
    )
    assert float((y - model(x)).detach().square().mean()) > 5
    noise = found.likelihood.noise
    assert noise == pytest.approx(residual_at_mean(found, model, x, y), rel=1e-6)
    # The standard error of a mean of 200 squares.
    assert abs(noise - 0.09) < Z * 0.09 * (2 / 200) ** 0.5


class Repeated:
    """A loader without an end."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return cycle(self.batches)


class Interrupt(Exception):
    pass


class Interrupted:
    """A loader that stops the run at one of its batches, however often it is started."""

    def __init__(self, loader, after):
        self.loader, self.left = loader, after
        self.generator = loader.generator

    def __iter__(self):
        for batch in self.loader:
            if self.left == 0:
                raise Interrupt
            self.left -= 1
            yield batch


def dropout_net():
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)
    )


def loader_of(generator=True):
    own = torch.Generator().manual_seed(3)
    x = torch.randn(30, 4, generator=own)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    drawn = torch.Generator().manual_seed(4) if generator else None
    return DataLoader(data, batch_size=4, shuffle=True, generator=drawn)


@pytest.mark.parametrize("own_generator", [True, False])
@pytest.mark.parametrize("after", [3, 25, 47, 61])
def test_an_interrupted_run_ends_with_the_same_moments(tmp_path, after, own_generator):
    """Interrupted in a first trial, a second, or the run itself; dropout on."""
    model = dropout_net()
    validation = [next(iter(loader_of()))]
    subset = smidgen.select.sparse_kfac(model, percent=50)
    options = {
        "validation": validation,
        "learning_rate": [0.01, 0.05],
        "steps": 40,
        "trial_steps": 20,
        "every": 2,
        "rank": 6,
        "seed": 9,
    }
    whole = swag(
        model, loader_of(own_generator), subset, **grouped(SwagSettings, **options)
    )
    path = tmp_path / "run.safetensors"
    kept = {"checkpoint": path, "checkpoint_every": 7}
    broken = Interrupted(loader_of(own_generator), after)
    with pytest.raises(Interrupt):
        swag(model, broken, subset, **grouped(SwagSettings, **options, **kept))
    resumed = swag(
        model, loader_of(own_generator), subset, **grouped(SwagSettings, **options, **kept)
    )
    assert resumed == whole
    # It stays until the posterior is saved: the same call gives it at once.
    assert (
        swag(
            model,
            loader_of(own_generator),
            subset,
            **grouped(SwagSettings, **options, **kept),
        )
        == whole
    )
    other = smidgen.select.last_layer(model)
    with pytest.raises(StoreError, match="of another run: there weights is"):
        swag(
            model,
            loader_of(own_generator),
            other,
            **grouped(SwagSettings, **options, **kept),
        )


def test_running_statistics_stay_and_dropout_is_on(unchanged):
    model = dropout_net().train()
    subset = smidgen.select.last_layer(model)
    runs = {}
    with unchanged(model):
        for dropout in (True, False):
            runs[dropout] = swag(
                model, loader_of(), subset, settings=SwagSettings(steps=20, dropout=dropout)
            )
    assert not torch.equal(runs[True].mean, runs[False].mean)
    again = swag(model, loader_of(), subset, settings=SwagSettings(steps=20, dropout=True))
    assert again == runs[True]


def test_a_rate_whose_loss_overflows_before_the_outputs_do_is_only_a_bad_one():
    model = nn.Linear(3, 1)
    batch = (torch.randn(8, 3), torch.randn(8, 1))
    subset = smidgen.select.sparse_kfac(model, percent=100)
    found = smidgen.fit.swag(
        smidgen.Problem(model, smidgen.Gaussian(1)),
        [batch],
        subset,
        validation=[batch],
        progress=False,
        settings=smidgen.fit.SwagSettings(
            learning_rate=[1e-3, 20.0], steps=40, every=2, trial_steps=40
        ),
    )
    assert dict(found.rates)[20.0] == float("inf")
    assert found.learning_rate == 1e-3


def test_the_rate_is_chosen_by_validation_nll_and_one_that_runs_off_is_not():
    model, batch = Case("mlp", mlp, 3, vectors).make()
    subset = smidgen.select.sparse_kfac(model, percent=100)
    found = swag(
        model,
        split(batch),
        subset,
        validation=[batch],
        settings=SwagSettings(learning_rate=[1e-9, 0.02, 1e200], steps=60, trial_steps=40),
    )
    tried = dict(found.rates)
    assert tried[1e200] == float("inf")
    assert found.learning_rate == min(tried, key=tried.get) == 0.02
    with pytest.raises(DataError, match="diverged with every learning rate"):
        swag(
            model,
            split(batch),
            subset,
            validation=[batch],
            settings=SwagSettings(learning_rate=[1e199, 1e200], steps=60, trial_steps=40),
        )


def test_a_collector_in_ones_own_loop_has_the_same_moments():
    model, batch = ONE_BLOCK.make()
    batches = split(batch)
    subset = smidgen.select.modules(model, count=1)
    ours = swag(
        model,
        batches,
        subset,
        settings=SwagSettings(learning_rate=0.1, steps=12, every=3, rank=3, weight_decay=0),
    )
    copy = deepcopy(model)
    for name, parameter in copy.named_parameters():
        parameter.requires_grad_(name in subset.parts)
    moved = [p for p in copy.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(moved, lr=0.1, momentum=0.9)
    collector = SwagCollector(copy, subset, rank=3)
    for step in range(12):
        optimiser.zero_grad()
        own = batches[step % len(batches)]
        loss = nn.functional.cross_entropy(Case.forward(copy, own), own["labels"])
        loss.backward()
        optimiser.step()
        if (step + 1) % 3 == 0:
            collector.collect()
    found = collector.posterior(smidgen.Categorical(3), num_data=4)
    torch.testing.assert_close(found.mean, ours.mean, **EXACT)
    torch.testing.assert_close(found.covariance_matrix(), ours.covariance_matrix(), **EXACT)
    # It belongs to the model as trained, and predicts around the mean.
    assert smidgen.predict(found, copy, batch).probs.shape == (4, 3)
    with pytest.raises(ArgumentError, match="must be the one the posterior"):
        smidgen.predict(found, model, batch)


def test_the_result_does_not_depend_on_how_often_the_loader_was_read():
    model, loader = dropout_net(), loader_of()
    subset = smidgen.select.last_layer(model)
    before = loader.generator.get_state()
    first = swag(model, loader, subset, seed=1, settings=SwagSettings(steps=20))
    assert torch.equal(loader.generator.get_state(), before)
    list(loader)
    assert swag(model, loader, subset, seed=1, settings=SwagSettings(steps=20)) == first
    assert swag(model, loader, subset, seed=2, settings=SwagSettings(steps=20)) != first


def test_a_rate_that_runs_off_in_the_last_step_is_an_error():
    model, batch = Case("mlp", mlp, 3, vectors).make()
    subset = smidgen.select.sparse_kfac(model, percent=100)
    with pytest.raises(DataError, match="are not finite after"):
        swag(
            model.float(),
            [(batch[0].float(), batch[1])],
            subset,
            settings=SwagSettings(learning_rate=1e38, steps=3, every=1),
        )


class Recomputes(nn.Module):
    """Recomputes its activations in the backward pass."""

    def __init__(self, plain):
        super().__init__()
        self.plain = plain

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.plain, x, use_reentrant=False)


def test_recomputed_activations_see_the_weights_that_move():
    model, batch = Case("mlp", mlp, 3, vectors).make()
    options = {"learning_rate": 0.5, "steps": 20, "every": 2, "rank": 3}
    found = []
    for net in (model, Recomputes(model)):
        subset = smidgen.select.sparse_kfac(net, percent=100)
        found.append(swag(net, split(batch), subset, **grouped(SwagSettings, **options)))
    torch.testing.assert_close(found[0].mean, found[1].mean, **EXACT)


def test_transposed_and_channels_last_parameters():
    case = Case("conv", ConvNet, 2, images)
    model, batch = case.make()
    subset = smidgen.select.weights(model, fraction=0.3)
    plain = swag(model, [batch], subset, settings=SwagSettings(steps=20, rank=3))
    moved = swag(
        model.to(memory_format=torch.channels_last),
        [batch],
        subset,
        settings=SwagSettings(steps=20, rank=3),
    )
    torch.testing.assert_close(moved.mean, plain.mean, **EXACT)
    smidgen.predict(moved, model, batch, samples=2)


def test_tuning_again_tells_the_same():
    model, batch = ONE_BLOCK.make()
    found = swag(
        model,
        split(batch),
        smidgen.select.last_layer(model),
        settings=SwagSettings(steps=20),
    )
    once = smidgen.calibrate(found, model, [batch])
    assert smidgen.calibrate(once, model, [batch]).calibration == once.calibration


@pytest.mark.filterwarnings("ignore:the best temperature")
def test_samples_far_worse_than_the_trained_weights_are_mentioned():
    x = torch.linspace(-2, 2, 32)[:, None]
    y = (x[:, 0] > 0).long()
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-3.0], [3.0]]))
        model.bias.zero_()
    everything = smidgen.select.sparse_kfac(model, percent=100)
    away, near = (
        swag(
            model,
            [(x, labels)],
            everything,
            settings=SwagSettings(steps=40, learning_rate=rate),
        )
        for labels, rate in ((1 - y, 1.0), (y, 1e-3))
    )
    with pytest.warns(SmidgenWarning, match="draws have left"):
        smidgen.calibrate(away, model, [(x, y)])
    smidgen.calibrate(near, model, [(x, y)])


def test_bf16_weights_move_in_fp32():
    model, batch = ONE_BLOCK.make()
    model = model.to(torch.bfloat16)
    subset = smidgen.select.sparse_kfac(model, percent=40)
    found = swag(
        model, split(batch), subset, settings=SwagSettings(learning_rate=1e-4, steps=30)
    )
    start = SubsetVector(model, subset).values
    # Steps of 1e-4 are lost in bf16, which has 8 bits.
    assert found.mean.dtype == torch.float32
    assert (found.mean != start).float().mean() > 0.9
    assert (found.mean.bfloat16() == start.bfloat16()).float().mean() > 0.5


@pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
@pytest.mark.parametrize("covariance", ["low-rank", "diagonal", "none"])
def test_a_saved_posterior_comes_back_equal(tmp_path, covariance):
    model, batch = ONE_BLOCK.make()
    subset = smidgen.select.weights(model, fraction=0.1)
    found = swag(
        model,
        split(batch),
        subset,
        validation=[batch],
        settings=SwagSettings(
            learning_rate=[0.01, 1e200],
            steps=20,
            trial_steps=20,
            rank=3,
            covariance=covariance,
        ),
    )
    found = smidgen.calibrate(found, model, [batch], samples=4)
    folder = smidgen.save(found, tmp_path / "saved")
    assert smidgen.load(folder, model) == found
    assert "swag" in (folder / "README.md").read_text()
    other, _ = Case("other", OneBlock, 3, padded_tokens).make()
    with torch.no_grad():
        other.classifier.bias += 1
    with pytest.raises(StoreError, match="another model"):
        smidgen.load(folder, other)


def test_a_damaged_swag_folder_is_refused(tmp_path):
    model, batch = ONE_BLOCK.make()
    subset = smidgen.select.last_layer(model)
    found = swag(model, split(batch), subset, settings=SwagSettings(steps=20, rank=3))
    folder = smidgen.save(found, tmp_path / "saved")
    path, tensor_path = folder / "config.json", folder / "posterior.safetensors"
    config, tensors = json.loads(path.read_text()), read_safetensors(tensor_path)[0]
    del config["digest"], config["tensors"]
    mean, variance = tensors["swag/mean"], tensors["swag/variance"]
    # Without its deviations it would be diagonal, without its variance a point.
    without = {n: t for n, t in tensors.items() if n != "swag/deviations"}
    for change, kept, message in [
        (
            {"method": "magic"},
            tensors,
            "must be one of laplace, swag, ssvi, point, got 'magic'",
        ),
        ({"snapshots": "many"}, tensors, "snapshots must not be 'many'"),
        ({"snapshots": 1}, tensors, "snapshots must be more than 1"),
        ({}, without, "the tensor 'swag/deviations' is missing"),
        ({"covariance": "diagonal"}, tensors, "'swag/deviations' belongs to nothing"),
        ({}, {**tensors, "swag/mean": mean[:1].clone()}, "mean must have shape"),
        ({}, {**tensors, "swag/mean": mean * torch.nan}, "mean must be finite"),
        ({}, {**tensors, "swag/variance": -variance - 1}, "variance must be 0 or more"),
        ({}, {**tensors, "swag/variance": variance.float()}, "must be of the mean's type"),
    ]:
        fill_folder(path, tensor_path, {**config, **change}, kept)
        with pytest.raises(StoreError, match=message):
            smidgen.load(folder, model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be 1 or more, got 0"),
        ({"every": 0}, "every must be 1 or more, got 0"),
        ({"rank": 1}, "rank must be 2 or more, got 1"),
        (
            {"covariance": "wide"},
            "covariance must be one of low-rank, diagonal, none, got 'wide'",
        ),
        ({"burn_in": 2000}, "burn_in must be from 0 to"),
        ({"momentum": 1.0}, "momentum must be in"),
        ({"learning_rate": -1.0}, "learning_rate must be > 0"),
        ({"learning_rate": [0.1, 0.2]}, "several with validation="),
        ({"steps": 12, "every": 5}, "steps=12 with every=5 and burn_in=0 gives 2"),
        ({"learning_rate": "0.01"}, "learning_rate must be one rate, or several"),
    ],
)
def test_refusals_name_the_argument(options, message):
    model, batch = ONE_BLOCK.make()
    subset = smidgen.select.last_layer(model)
    with pytest.raises(ArgumentError, match=message):
        swag(model, split(batch), subset, **grouped(SwagSettings, **options))


def test_other_refusals():
    model, batch = ONE_BLOCK.make()
    subset = smidgen.select.last_layer(model)
    with pytest.raises(SubsetError, match="another model"):
        swag(nn.Linear(2, 3), split(batch), subset)
    unlabelled = [{k: v for k, v in batch.items() if k != "labels"}]
    problem = smidgen.Problem(model, smidgen.Categorical(3))
    with pytest.raises(DataError, match="needs labels"):
        swag(problem, unlabelled, subset, settings=SwagSettings(steps=15))
    with pytest.raises(DataError, match="not an iterator"):
        swag(model, iter(split(batch)), subset, settings=SwagSettings(steps=50))


def test_a_point_estimate_has_one_temperature_whoever_asks():
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(3, (60,), generator=generator)
    logits = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    logits = 4 * (logits + nn.functional.one_hot(targets, 3))
    held = HeldOut(Categorical(3), logits[None], logits[None], targets)
    found, _ = held.best(held.point)
    assert found == pytest.approx(smidgen.fit.temperature(logits, targets), rel=1e-9)
