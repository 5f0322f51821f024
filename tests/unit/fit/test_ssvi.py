"""SSVI as a whole: training, baselines, resuming, predicting, storing."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from math import cos, exp, log, pi

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertForSequenceClassification

import smidgen
from smidgen import SparsePosterior, fit
from smidgen.errors import (
    ArgumentError,
    DataError,
    SmidgenWarning,
    StoreError,
    StructureError,
)
from smidgen.fit import SsviSettings
from smidgen.outputs.problem import Problem
from smidgen.runtime.artifact import fill_folder
from smidgen.runtime.reading import read_safetensors
from smidgen.sparse import (
    Rewiring,
    Schedule,
    SparseSettings,
    make_sparse,
    prune_network,
)
from smidgen.sparse.architectures import PlainNetwork
from smidgen.sparse.flops import count_step_flops
from tests.support.sparse_cases import QUICK, assert_same, blobs, made_sparse, mlp, resnet
from tests.support.tiny import bert_config
from tests.support.tolerances import EXACT, STATE_RATIO


@pytest.mark.parametrize("budget", ["uniform", "erk", "global"])
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_it_learns_at_a_fifth_of_the_weights(budget, kind, unchanged):
    model = mlp()
    network = make_sparse(model, density=0.2, settings=SparseSettings(budget=budget))
    training = SsviSettings(
        epochs=8, learning_rate=0.02, optimiser=kind, every=5, temperature=0.1
    )
    with unchanged(model), unchanged(network):
        found = fit.ssvi(
            network, blobs(), validation=blobs(seed=5, shuffle=False), settings=training
        )
    assert found.network.density == network.density
    assert found.changes
    assert found.history[-1].accuracy > 0.85
    assert not found.network.training


def posterior_of(network, classes=3):
    """A posterior of a network that nobody trained."""
    return SparsePosterior(network=network, likelihood=smidgen.Categorical(classes))


def test_a_plain_model_is_enough(unchanged):
    model = mlp()
    with unchanged(model), torch.inference_mode():
        found = fit.ssvi(
            model,
            blobs(),
            settings=replace(QUICK, density=0.3),
        )
    assert found.network.subset().size == found.network.count
    assert found.network.density == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("noise", ["local", "weights"])
@pytest.mark.parametrize("image", [False, True], ids=["mlp", "convolutions"])
@pytest.mark.parametrize("density", [0.2, 1.0])
def test_counted_operations_are_those_torch_counts(noise, image, density):
    model = resnet() if image else mlp()
    network = make_sparse(
        model, density=density, settings=SparseSettings(path="dense", noise=noise)
    )
    inputs, labels = next(iter(blobs(image=image)))
    with FlopCounterMode(display=False) as counter:
        nn.functional.cross_entropy(network(inputs), labels).backward()
    counted = count_step_flops(network, inputs)
    assert counted.done_products == counter.get_total_flops()
    assert (counted.products == counted.done_products) == (density == 1.0)
    network.set_path("sparse")
    assert count_step_flops(network, inputs).done == counted.total


@pytest.mark.parametrize("budget", ["erk", "global"])
def test_counted_operations_of_a_move_are_those_torch_counts(budget):
    """With erk the last layer is whole: a move only passes through it."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3))
    )
    network = make_sparse(
        model, density=0.5, settings=SparseSettings(path="dense", budget=budget)
    )
    assert network.layers["4"].pattern.indices is None or budget == "global"
    inputs, labels = next(iter(blobs()))
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    alternation = Rewiring(network, optimiser, Schedule(10**6, every=1))

    def loss():
        return nn.functional.cross_entropy(network(inputs), labels)

    with FlopCounterMode(display=False) as counter:
        assert alternation.advance(lambda: [loss] * 2) is not None
    counted = count_step_flops(network, inputs, passes=2, every=1, until=1.0)
    assert counted.done_moves == counter.get_total_flops()


def test_counted_operations_follow_the_density():
    inputs, _ = next(iter(blobs()))
    sparse, dense = (
        count_step_flops(make_sparse(mlp(100), density=d), inputs, every=100, passes=4)
        for d in (0.1, 1.0)
    )
    assert sparse.products / dense.products == pytest.approx(0.1, rel=0.02)
    assert dense.moves == 0
    assert sparse.moves > 0


def test_the_same_seed_gives_the_same_network():
    # The probe may take another path another time, and the last bits differ then.
    first, second, other = (
        fit.ssvi(
            make_sparse(mlp(), settings=SparseSettings(path="sparse"), seed=seed),
            blobs(),
            settings=QUICK,
        )
        for seed in (3, 3, 4)
    )
    assert_same(first.network, second.network)
    assert first.network.subset() != other.network.subset()
    # A record says which path its numbers came by.
    taken = first.record_config()["paths"]
    assert taken == dict.fromkeys(first.network.layers, "sparse")


def test_seed_density_and_start_are_of_a_plain_model():
    network = make_sparse(mlp(), density=0.3, settings=SparseSettings(path="dense"))
    first, second = (
        fit.ssvi(network, blobs(), settings=replace(QUICK, replaced=0.0), seed=seed)
        for seed in (1, 2)
    )
    assert first.network.subset() == second.network.subset() == network.subset()
    assert not torch.equal(
        first.network.layers["0"].means, second.network.layers["0"].means
    )
    for name, value in (("density", 0.5), ("start", "magnitude")):
        with pytest.raises(ArgumentError, match=f"{name} must be left out for a network"):
            fit.ssvi(network, blobs(), settings=replace(QUICK, **{name: value}))


def test_a_trained_model_keeps_its_largest_weights_if_asked():
    model = mlp()
    still = replace(QUICK, epochs=1, learning_rate=1e-9, replaced=0.0)
    kept, drawn = (
        fit.ssvi(
            model,
            blobs(),
            settings=replace(still, density=0.25, start=start),
        ).network
        for start in ("magnitude", None)
    )
    wanted = make_sparse(model, density=0.25, start="magnitude")
    assert kept.subset() == wanted.subset() != drawn.subset()
    for name, part in kept.layers.items():
        torch.testing.assert_close(part.means, wanted.layers[name].means)


def test_the_objective_has_temperature_warm_up_and_num_data():
    """Without noise the scales feel the KL term alone: T β_t (σ²/s² − 1) / N."""
    network = make_sparse(
        mlp().double(), density=1.0, settings=SparseSettings(noise="none", scale=0.5)
    )
    training = SsviSettings(
        epochs=2, optimiser="sgd", learning_rate=2.0, temperature=0.3, warm_up=0.5
    )
    data = [(x.double(), y) for x, y in blobs(60, shuffle=False)]
    found = fit.ssvi(
        network,
        data,
        settings=replace(training, num_data=7),
    ).network
    steps = training.epochs * len(data)
    assert steps == 4
    log_scale, speed = log(0.5), 0.0
    for step, beta in enumerate((0.5, 1.0, 1.0, 1.0)):
        gradient = 0.3 * beta / 7 * (exp(2 * log_scale) - 1)
        speed = 0.9 * speed + gradient
        log_scale -= 2.0 * (1 + cos(pi * step / steps)) / 2 * speed
    for name, part in found.layers.items():
        expected = torch.full_like(part.log_scales, log_scale + log(found.priors[name]))
        torch.testing.assert_close(part.log_scales.detach(), expected.detach(), **EXACT)


def test_tokens_are_what_the_kl_counts_against():
    """Every labelled token is a term of the likelihood, and none else."""
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    network = make_sparse(model, density=1.0, settings=SparseSettings(noise="none"))
    inputs = torch.randn(8, 10, 6, dtype=torch.float64)
    labels = torch.arange(80).view(8, 10) % 3
    labels[:, 7:] = -100
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=4)
    training = SsviSettings(epochs=2, optimiser="sgd")
    found, told = (
        fit.ssvi(
            network,
            loader,
            settings=replace(training, num_data=count),
        ).network
        for count in (None, 56)
    )
    assert_same(found, told)


def test_batches_without_a_label_are_passed_over():
    data = [
        (x, torch.full_like(y, -100) if i % 2 else y) for i, (x, y) in enumerate(blobs())
    ]
    training = replace(QUICK, every=1, epochs=1, passes=2)
    found = fit.ssvi(mlp(), data, settings=replace(training, density=0.3, num_data=300))
    assert found.changes
    nothing = [(x, torch.full_like(y, -100)) for x, y in blobs()]
    still = fit.ssvi(
        mlp(),
        nothing + data,
        settings=replace(training, density=0.3, num_data=300),
    )
    # The first batches have no loss to tell who may come.
    assert [move.step for move in still.changes][0] == len(nothing) + 1


class Counting(nn.Sequential):
    """Notes its forward passes in training."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.calls = []

    def forward(self, inputs):
        if self.training:
            self.calls.append(float(inputs[0, 0]))
        return super().forward(inputs)


def test_a_move_has_as_many_passes_as_asked():
    training = replace(QUICK, every=1, epochs=2, passes=4)
    data = list(blobs(90))
    found = fit.ssvi(
        Counting(*mlp(100)),
        data,
        settings=replace(training, density=0.3, num_data=90),
    )
    first, second, third = (float(x[0, 0]) for x, _ in data)
    # Six steps; moves after the first four, the fourth in a new epoch.
    assert [move.step for move in found.changes] == [1, 2, 3, 4]
    assert found.network.model.calls == [
        *(first, *[first] * 4),
        *(second, first, second, first, second),
        *(third, first, second, third, first),
        *(first, *[first] * 4),
        *(second, third),
    ]


def test_a_set_that_never_moves_is_mentioned():
    training = SsviSettings(epochs=2)
    with pytest.warns(SmidgenWarning, match=r"never move: every=100, .*\(every=1\)"):
        found = fit.ssvi(mlp(), blobs(), settings=training)
    assert not found.changes
    # Nobody who asked for it is told.
    fit.ssvi(mlp(), blobs(), settings=replace(training, replaced=0.0))
    fit.ssvi(
        mlp(),
        blobs(),
        settings=replace(training, density=1.0),
    )


def test_the_kl_is_that_of_torch():
    network = make_sparse(
        mlp().double(), density=0.4, settings=SparseSettings(prior={"0": 0.5, "2": 2.0})
    )
    expected = 0.0
    for name, part in network.layers.items():
        prior = Normal(0.0, network.priors[name])
        expected = expected + kl_divergence(Normal(part.means, part.scales), prior).sum()
    torch.testing.assert_close(network.kl(), expected, **EXACT)


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_weight_decay_is_off_unless_asked(decay, kind):
    """A feature that is always zero gives no gradient: only decay moves its weights."""
    network = make_sparse(mlp(), density=1.0)
    data = [(torch.cat([x[:, :5], torch.zeros(30, 1)], 1), y) for x, y in blobs()]
    training = SsviSettings(
        epochs=1, optimiser=kind, temperature=0.0, learning_rate=0.1, weight_decay=decay
    )
    found = fit.ssvi(network, data, settings=replace(training, num_data=300)).network
    before, after = (each.layers["0"].to_dense()[:, 5] for each in (network, found))
    assert torch.equal(before, after) == (decay == 0.0)
    logs = [each.layers["0"].log_scales.view(32, 6)[:, 5] for each in (network, found)]
    assert torch.equal(*logs)


@pytest.mark.parametrize("density", [0.05, 0.1])
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_training_state_follows_the_density(density, kind):
    held = []
    for each in (density, 1.0):
        network = make_sparse(
            mlp(400), density=each, settings=SparseSettings(path="sparse")
        )
        training = SsviSettings(epochs=1, optimiser=kind, every=3)
        held.append(fit.ssvi(network, blobs(), settings=training))
    assert held[0].state_bytes / held[1].state_bytes < STATE_RATIO
    # Compressed rows; and compressed columns where inputs have a gradient, with an order.
    first, last = (part.pattern for part in held[0].network.layers.values())
    rows = sum(each.count + each.rows + 1 for each in (first, last))
    assert held[0].derived_bytes == 4 * (rows + 2 * last.count + last.columns + 1)


def test_deterministic_networks_have_no_scales_and_no_kl():
    network = make_sparse(mlp(), density=0.2, settings=SparseSettings(deterministic=True))
    found = fit.ssvi(network, blobs(), validation=blobs(seed=5), settings=QUICK)
    assert not any("log_scales" in n for n, _ in found.network.named_parameters())
    assert found.changes
    with pytest.raises(StructureError, match="no KL term"):
        network.kl()
    dense = make_sparse(mlp(), density=1.0, settings=SparseSettings(deterministic=True))
    found = fit.ssvi(dense, blobs(), validation=blobs(seed=5), settings=QUICK)
    assert not found.changes
    assert found.history[-1].accuracy > 0.85


def test_dense_and_deterministic_is_plain_training():
    """The baseline is the training loop everybody writes."""
    model = mlp()
    network = make_sparse(
        model, density=1.0, settings=SparseSettings(deterministic=True, path="dense")
    )
    training = SsviSettings(epochs=1, learning_rate=0.1, optimiser="sgd")
    found = fit.ssvi(network, blobs(shuffle=False), settings=training)
    plain = mlp()
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    loader = blobs(shuffle=False)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, len(loader))
    for x, y in loader:
        optimiser.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        optimiser.step()
        schedule.step()
    for name, value in found.network.dense_state_dict().items():
        torch.testing.assert_close(value, plain.state_dict()[name])


@pytest.mark.parametrize("image", [False, True], ids=["mlp", "batchnorm"])
def test_predictions_are_a_mixture_of_draws(image):
    found = fit.ssvi(resnet() if image else mlp(), blobs(image=image), settings=QUICK)
    x, _ = next(iter(blobs(image=image, shuffle=False)))
    predictive = smidgen.predict(found, found.network, x, samples=5, seed=7)
    seeds = torch.randint(2**62, (5,), generator=torch.Generator().manual_seed(7))
    probs = []
    with torch.no_grad():
        for seed in seeds.tolist():
            [values] = found.sampler(found.network)([torch.Generator().manual_seed(seed)])
            outputs = torch.func.functional_call(found.network.model, values, x)
            probs.append(outputs.double().softmax(-1))
    torch.testing.assert_close(predictive.probs, torch.stack(probs).mean(0), **EXACT)
    point = smidgen.predict(found, found.network, x, samples=0)
    expected = found.network(x).detach().double().softmax(-1)
    torch.testing.assert_close(point.probs, expected, **EXACT)
    with pytest.raises(ArgumentError, match="samples must be 2 or more, or 0, got 1"):
        smidgen.predict(found, found.network, x, samples=1)


def test_a_transformer_with_dict_batches(unchanged):
    torch.manual_seed(0)
    model = BertForSequenceClassification(bert_config(num_labels=3))
    batch = {
        "input_ids": torch.randint(1, 7, (6, 7)),
        "attention_mask": torch.ones(6, 7, dtype=torch.int64),
        "labels": torch.arange(6) % 3,
    }
    training = SsviSettings(epochs=3, every=2, until=1.0)
    network = make_sparse(
        model, density=0.2, start="magnitude", settings=SparseSettings(budget="erk")
    )
    with unchanged(model):
        found = fit.ssvi(network, [batch, batch], settings=replace(training, num_data=12))
    assert found.changes
    predictive = smidgen.predict(found, model, batch, samples=3)
    assert predictive.probs.shape == (6, 3)
    plain = BertForSequenceClassification(bert_config(num_labels=3))
    plain.load_state_dict(found.network.dense_state_dict())


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_activations_change_nothing(reentrant, unchanged):
    """Hugging Face's gradient checkpointing is off while a copy is trained."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(bert_config(num_labels=3))
    plain = deepcopy(model)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    batch = {
        "input_ids": torch.arange(42).view(6, 7) % 6 + 1,
        "labels": torch.arange(6) % 3,
    }
    training = SsviSettings(epochs=3, every=2, until=1.0)
    found = []
    for each in (model, plain):
        network = make_sparse(each, density=0.2, settings=SparseSettings(path="dense"))
        with unchanged(each):
            found.append(
                fit.ssvi(network, [batch] * 2, settings=replace(training, num_data=12))
            )
    assert found[0].changes
    assert_same(found[0].network, found[1].network)
    assert found[0].network.model.is_gradient_checkpointing


def test_predicting_and_counting_leave_the_network_as_it_was(unchanged):
    network = make_sparse(resnet(), density=0.3)
    loader = blobs(image=True, shuffle=False)
    inputs, _ = next(iter(loader))
    with unchanged(network):
        posterior = posterior_of(network)
        smidgen.predict_batches(posterior, network, loader, samples=2)
        count_step_flops(network, inputs)
    # Which path is faster is a question of training batches.
    assert all(part.path == "auto" for part in network.layers.values())


@pytest.mark.parametrize("image", [False, True], ids=["mlp", "batchnorm"])
@pytest.mark.parametrize("density", [0.1, 1.0])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_folder_round_trip(tmp_path, image, density, deterministic, unchanged):
    model = resnet() if image else mlp()
    network = make_sparse(
        model, density=density, settings=SparseSettings(deterministic=deterministic)
    )
    posterior = fit.ssvi(network, blobs(image=image), settings=QUICK)
    smidgen.save(posterior, tmp_path / "net")
    with unchanged(model):
        again = smidgen.load(tmp_path / "net", model)
    assert again == posterior
    found, loaded = posterior.network, again.network
    assert_same(found, loaded)
    assert loaded.subset() == found.subset()
    assert loaded.priors == found.priors
    plain = deepcopy(model)
    plain.load_state_dict(loaded.dense_state_dict())
    x, _ = next(iter(blobs(image=image, shuffle=False)))
    torch.testing.assert_close(plain.eval()(x), loaded(x))
    with pytest.raises(StoreError, match="exists already"):
        smidgen.save(posterior, tmp_path / "net")
    smidgen.save(posterior, tmp_path / "net", overwrite=True)


def test_a_network_keeps_its_likelihood(tmp_path):
    """Bare inputs do not say that two outputs are of a regression, nor its noise."""
    model = nn.Linear(6, 2)
    x = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    likelihood = smidgen.Gaussian(2, noise=0.01, relative=(0.5, 2.0))
    batches, problem = [(x, x[:, :2])] * 2, Problem(model, likelihood)
    training = SsviSettings(epochs=1, every=1)
    found = fit.ssvi(problem, batches, settings=replace(training, density=0.5, num_data=60))
    folder = smidgen.save(found, tmp_path / "net")
    network = Problem(found.network, likelihood)
    for posterior in (
        found,
        replace(found, network=prune_network(found.network, 0.25)),
        smidgen.load(folder, model),
        fit.ssvi(network, batches, settings=replace(training, num_data=60)),
    ):
        one = smidgen.predict(posterior, model, x, samples=2)
        many = smidgen.predict_batches(posterior, model, batches, samples=2)
        own = posterior.likelihood
        noise = own.noise * own.ratios(one.noise[0])
        for predictive in (one, many):
            torch.testing.assert_close(predictive.noise[0], noise, **EXACT)
        # Fitted, for each output.
        assert own.noise != likelihood.noise
        assert own.relative != likelihood.relative


class Named(nn.Module):
    """A model whose own parameters are called as ours are."""

    def __init__(self):
        super().__init__()
        self.means = nn.Parameter(torch.full((3,), 7.0))
        self.kmeans = nn.Parameter(torch.full((3,), 8.0))
        self.log_scales = nn.Parameter(torch.full((3,), 9.0))
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs):
        return self.layer(inputs) + self.means + self.kmeans + self.log_scales


def test_parameters_named_like_ours_stay_the_callers(tmp_path):
    network = make_sparse(Named(), density=0.5)
    training = SsviSettings(epochs=1, learning_rate=0.1, every=3, scale_rate=0.0)
    found = fit.ssvi(network, blobs(), settings=training).network
    # With a rate of zero for scales the caller's log_scales still learn.
    assert not torch.equal(found.model.log_scales, network.model.log_scales)
    assert torch.equal(
        found.layers["layer"].log_scales.unique(),
        torch.full_like(
            found.layers["layer"].log_scales[:1], log(0.1 * found.priors["layer"])
        ),
    )
    loaded = smidgen.load(smidgen.save(posterior_of(found), tmp_path / "net"), Named())
    loaded = loaded.network
    assert_same(found, loaded)
    plain = Named()
    plain.load_state_dict(loaded.dense_state_dict())
    for name in ("means", "kmeans", "log_scales"):
        assert torch.equal(getattr(plain, name), getattr(found.model, name))


def test_a_folder_is_small(tmp_path):
    """As wide as networks are: there biases and counts of rows hardly weigh."""
    sizes = []
    for density in (0.1, 1.0):
        model = nn.Sequential(nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 10))
        posterior = posterior_of(make_sparse(model, density=density))
        folder = smidgen.save(posterior, tmp_path / f"{density}")
        sizes.append((folder / "posterior.safetensors").stat().st_size)
    assert sizes[0] / sizes[1] < STATE_RATIO


def test_damaged_and_foreign_folders_are_refused(tmp_path):
    posterior = posterior_of(make_sparse(mlp(), density=0.2))
    folder = smidgen.save(posterior, tmp_path / "net")
    with pytest.raises(StoreError, match="does not fit this model"):
        smidgen.load(folder, mlp(16))
    with pytest.raises(StoreError, match="is not a saved posterior"):
        smidgen.load(tmp_path, mlp())
    config, path = folder / "config.json", folder / "posterior.safetensors"
    about, tensors = json.loads(config.read_text()), read_safetensors(path)[0]
    del about["digest"], about["tensors"]
    fewer = {n: t for n, t in tensors.items() if n != "log_scales/0"}
    layer = {**about["maps"]["0"], "prior": 0.0}
    for changes, kept, message in (
        ({"schema": 99}, tensors, "posterior schema 99"),
        # A lost tensor must not make the layer deterministic.
        ({}, fewer, "the tensor 'log_scales/0' is missing"),
        ({"maps": {**about["maps"], "0": layer}}, tensors, "impossible shape or prior"),
        ({"maps": {"0": about["maps"]["0"]}}, tensors, "is missing"),
    ):
        fill_folder(config, path, {**about, **changes}, kept)
        with pytest.raises(StoreError, match=message):
            smidgen.load(folder, mlp())
    with path.open("ab") as file:
        file.write(b"0")
    with pytest.raises(StoreError, match="bytes of tensors, its header says"):
        smidgen.load(folder, mlp())


def test_a_folder_cannot_ask_for_a_network_that_fills_the_memory(tmp_path):
    plain = PlainNetwork("mlp", (4,), 3, hidden=(5,))
    posterior = posterior_of(make_sparse(plain.build(), density=0.5))
    folder = smidgen.save(replace(posterior, plain=plain), tmp_path / "net")
    config, path = folder / "config.json", folder / "posterior.safetensors"
    assert smidgen.load(folder).plain == plain
    about, tensors = json.loads(config.read_text()), read_safetensors(path)[0]
    del about["digest"], about["tensors"]
    for change, message in (
        ({"hidden": [10**7, 10**7]}, "takes 400 TB"),
        ({"hidden": [1] * 10**5}, "more layers than it has tensors"),
        ({"hidden": [-5]}, "hidden must be 1 or more"),
        ({"shape": [2.5]}, "must not be '2.5'"),
    ):
        fill_folder(config, path, {**about, "model": {**about["model"], **change}}, tensors)
        with pytest.raises(StoreError, match=message):
            smidgen.load(folder)


def test_a_trained_model_starts_from_its_largest_weights():
    model = mlp()
    network = make_sparse(model, density=0.25, start="magnitude")
    for name, part in network.layers.items():
        flat = model.get_submodule(name).weight.detach().flatten()
        at = part.pattern.list_indices().long()
        assert torch.equal(part.means, flat[at])
        rest = torch.ones(len(flat), dtype=torch.bool)
        rest[at] = False
        assert flat[at].abs().min() >= flat[rest].abs().max()


@pytest.mark.parametrize("deterministic", [False, True])
def test_pruned_networks_predict_and_export(tmp_path, deterministic):
    found = fit.ssvi(make_sparse(mlp(), density=1.0), blobs(), settings=QUICK)
    less = prune_network(found.network, 0.1, by="snr", deterministic=deterministic)
    assert less.stochastic != deterministic
    assert found.network.stochastic
    posterior = replace(found, network=less)
    loaded = smidgen.load(smidgen.save(posterior, tmp_path / "net"), mlp())
    assert_same(less, loaded.network)
    x, _ = next(iter(blobs(shuffle=False)))
    smidgen.predict(posterior, mlp(), x, samples=3)
    assert less.count == round(0.1 * less.total)
    zeros = sum(
        int((w == 0).sum()) for n, w in less.dense_state_dict().items() if "weight" in n
    )
    assert zeros == less.total - less.count


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"density": 0.0}, r"density must be in \(0, 1\], got 0.0"),
        ({"budget": "some"}, "budget must be 'uniform', 'erk' or 'global', got 'some'"),
        ({"scale": -1.0}, "scale must be > 0, got -1.0"),
        ({"start": "here"}, "start must be 'random' or 'magnitude', got 'here'"),
        ({"prior": {"0": 1.0}}, "a number for every layer, got none for '2'"),
        ({"prior": 0.0}, "prior must be > 0, got 0.0"),
        ({"noise": "loud"}, "noise must be 'local', 'weights' or 'none', got 'loud'"),
        ({"path": "short"}, "path must be 'auto', 'dense' or 'sparse', got 'short'"),
    ],
)
def test_wrong_arguments_are_refused(options, words):
    with pytest.raises(ArgumentError, match=words):
        made_sparse(mlp(), **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 0}, "epochs must be 1 or more, got 0"),
        ({"passes": 0}, "passes must be 1 or more, got 0"),
        ({"every": 0}, "every must be 1 or more, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be > 0, got 0.0"),
        ({"scale_rate": -1.0}, "scale_rate must be >= 0, got -1.0"),
        ({"temperature": -1.0}, "temperature must be >= 0, got -1.0"),
        ({"weight_decay": -1.0}, "weight_decay must be >= 0, got -1.0"),
        ({"warm_up": 2.0}, r"warm_up must be in \[0, 1\], got 2.0"),
        ({"replaced": 2.0}, r"replaced must be in \[0, 1\], got 2.0"),
        ({"until": float("nan")}, r"until must be in \[0, 1\], got nan"),
        ({"optimiser": "lion"}, "optimiser must be 'adam' or 'sgd', got 'lion'"),
        ({"removal": "luck"}, "removal must be one of 'magnitude', .*, got 'luck'"),
    ],
)
def test_wrong_training_is_refused(options, words):
    with pytest.raises(ArgumentError, match=words):
        SsviSettings(**options)


def test_wrong_pruning_is_refused():
    network = make_sparse(mlp(), density=0.5)
    for density in (-1.0, 0.0, 7.0):
        with pytest.raises(ArgumentError, match=rf"in \(0, 1\], got {density}"):
            prune_network(network, density)
    with pytest.raises(
        ArgumentError, match="by must be one of 'magnitude', .*, got 'luck'"
    ):
        prune_network(network, 0.5, by="luck")
    with pytest.raises(ArgumentError, match="budget must be .*, got 'luck'"):
        prune_network(network, 0.5, budget="luck")


def test_wrong_data_are_refused():
    with pytest.raises(ArgumentError, match="num_data must be given"):
        fit.ssvi(mlp(), list(blobs()), settings=QUICK)
    with pytest.raises(DataError, match="length of 1 or more"):
        fit.ssvi(mlp(), [], settings=QUICK)


def test_a_subset_is_the_first_active_set():
    model = mlp()
    subset = smidgen.select.weights(model, fraction=0.3)
    still = replace(QUICK, epochs=1, replaced=0.0)
    found = fit.ssvi(model, blobs(), subset, settings=still)
    weights = {name for name in subset.parts if name.endswith("weight")}
    for name in weights:
        assert torch.equal(found.subset.indices(name), subset.indices(name))
    with pytest.raises(ArgumentError, match="subset must be left out for a network"):
        fit.ssvi(make_sparse(model, subset), blobs(), subset, settings=still)
    with pytest.raises(ArgumentError, match="density"):
        fit.ssvi(model, blobs(), subset, settings=replace(still, density=0.2))
