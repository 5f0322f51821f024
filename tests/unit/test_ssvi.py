"""SSVI as a whole: training, baselines, resuming, predicting, storing."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
import torch
from tests.sparse_cases import QUICK, assert_same, blobs, mlp, resnet
from tests.tiny import bert_config
from tests.tolerances import EXACT, STATE_RATIO
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertForSequenceClassification

import smidgen
from smidgen import fit
from smidgen.errors import ArgumentError, DataError, StoreError, StructureError
from smidgen.fit import SparseTraining
from smidgen.problem import Problem
from smidgen.sparse import load_sparse, pruned, save_sparse, sparse_bayesian
from smidgen.sparse.flops import step_flops


@pytest.mark.parametrize("budget", ["uniform", "erk", "global"])
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_it_learns_at_a_tenth_of_the_weights(budget, kind, unchanged):
    model = mlp()
    network = sparse_bayesian(model, density=0.2, budget=budget)
    training = SparseTraining(
        epochs=8, learning_rate=0.02, optimiser=kind, every=5, temperature=0.1
    )
    with unchanged(model), unchanged(network):
        found = fit.ssvi(network, blobs(), blobs(seed=5, shuffle=False), training=training)
    assert found.network.density == network.density
    assert found.moves
    assert found.history[-1].accuracy > 0.85
    assert not found.network.training


def test_a_plain_model_is_enough(unchanged):
    model = mlp()
    with unchanged(model):
        found = fit.ssvi(model, blobs(), density=0.3, training=QUICK)
    assert found.network.subset().size == found.network.count
    assert found.network.density == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("noise", ["local", "weights"])
@pytest.mark.parametrize("image", [False, True], ids=["mlp", "convolutions"])
def test_counted_operations_are_those_torch_counts(noise, image):
    model = resnet() if image else mlp()
    network = sparse_bayesian(model, density=1.0, path="dense", noise=noise)
    inputs, labels = next(iter(blobs(image=image)))
    with FlopCounterMode(display=False) as counter:
        nn.functional.cross_entropy(network(inputs), labels).backward()
    assert step_flops(network, inputs).total == counter.get_total_flops()


def test_counted_operations_follow_the_density():
    inputs, _ = next(iter(blobs()))
    sparse, dense = (
        step_flops(sparse_bayesian(mlp(100), density=d), inputs, every=100, passes=4)
        for d in (0.1, 1.0)
    )
    assert sparse.products / dense.products == pytest.approx(0.1, rel=0.02)
    assert dense.moves == 0
    assert sparse.moves > 0


def test_the_same_seed_gives_the_same_network():
    # The probe may take another path another time, and the last bits differ then.
    first, second, other = (
        fit.ssvi(sparse_bayesian(mlp(), path="sparse", seed=seed), blobs(), training=QUICK)
        for seed in (3, 3, 4)
    )
    assert_same(first.network, second.network)
    assert first.network.subset() != other.network.subset()


def test_the_kl_is_that_of_torch():
    network = sparse_bayesian(mlp().double(), density=0.4, prior={"0": 0.5, "2": 2.0})
    expected = 0.0
    for name, part in network.maps.items():
        prior = Normal(0.0, network.priors[name])
        expected = expected + kl_divergence(Normal(part.means, part.scales), prior).sum()
    torch.testing.assert_close(network.kl(), expected, **EXACT)


def test_weight_decay_is_off_unless_asked():
    assert SparseTraining().weight_decay == 0.0


@pytest.mark.parametrize("density", [0.05, 0.1])
@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_training_state_follows_the_density(density, kind):
    held = []
    for each in (density, 1.0):
        network = sparse_bayesian(mlp(400), density=each)
        training = SparseTraining(epochs=1, optimiser=kind, every=3)
        held.append(fit.ssvi(network, blobs(), training=training).state_bytes)
    assert held[0] / held[1] < STATE_RATIO


def test_deterministic_networks_have_no_scales_and_no_kl():
    network = sparse_bayesian(mlp(), density=0.2, deterministic=True)
    found = fit.ssvi(network, blobs(), blobs(seed=5), training=QUICK)
    assert not any("log_scales" in n for n, _ in found.network.named_parameters())
    assert found.moves
    with pytest.raises(StructureError, match="no KL term"):
        network.kl()
    dense = sparse_bayesian(mlp(), density=1.0, deterministic=True)
    found = fit.ssvi(dense, blobs(), blobs(seed=5), training=QUICK)
    assert not found.moves
    assert found.history[-1].accuracy > 0.85


def test_dense_and_deterministic_is_plain_training():
    """The baseline is the training loop everybody writes."""
    model = mlp()
    network = sparse_bayesian(model, density=1.0, deterministic=True, path="dense")
    training = SparseTraining(epochs=1, learning_rate=0.1, optimiser="sgd")
    found = fit.ssvi(network, blobs(shuffle=False), training=training)
    plain = mlp()
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    loader = blobs(shuffle=False)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, len(loader))
    for x, y in loader:
        optimiser.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        optimiser.step()
        schedule.step()
    for name, value in found.network.densified().items():
        torch.testing.assert_close(value, plain.state_dict()[name])


@pytest.mark.parametrize("image", [False, True], ids=["mlp", "batchnorm"])
def test_predictions_are_a_mixture_of_draws(image):
    found = fit.ssvi(resnet() if image else mlp(), blobs(image=image), training=QUICK)
    problem = Problem(found.network, found.likelihood)
    x, _ = next(iter(blobs(image=image, shuffle=False)))
    generator = torch.Generator().manual_seed(7)
    predictive = smidgen.predict_sparse(problem, x, samples=5, generator=generator)
    seeds = torch.randint(2**62, (5,), generator=torch.Generator().manual_seed(7))
    probs = []
    with torch.no_grad():
        for seed in seeds.tolist():
            with found.network.drawn(torch.Generator().manual_seed(seed)):
                probs.append(found.network(x).double().softmax(-1))
    torch.testing.assert_close(predictive.probs, torch.stack(probs).mean(0), **EXACT)
    point = smidgen.predict_sparse(found.network, x, samples=0)
    expected = found.network(x).detach().double().softmax(-1)
    torch.testing.assert_close(point.probs, expected, **EXACT)
    with pytest.raises(ArgumentError, match="samples must be 2 or more, or 0, got 1"):
        smidgen.predict_sparse(found.network, x, samples=1)


def test_a_transformer_with_dict_batches(unchanged):
    torch.manual_seed(0)
    model = BertForSequenceClassification(bert_config(num_labels=3))
    batch = {
        "input_ids": torch.randint(1, 7, (6, 7)),
        "attention_mask": torch.ones(6, 7, dtype=torch.int64),
        "labels": torch.arange(6) % 3,
    }
    training = SparseTraining(epochs=3, every=2, until=1.0)
    network = sparse_bayesian(model, density=0.2, start="magnitude", budget="erk")
    with unchanged(model):
        found = fit.ssvi(network, [batch, batch], training=training, num_data=12)
    assert found.moves
    predictive = smidgen.predict_sparse(found.network, batch, samples=3)
    assert predictive.probs.shape == (6, 3)
    plain = BertForSequenceClassification(bert_config(num_labels=3))
    plain.load_state_dict(found.network.densified())


def test_predicting_leaves_the_network_as_it_was(unchanged):
    network = sparse_bayesian(resnet(), density=0.3)
    network(torch.randn(4, 1, 6, 6))
    loader = blobs(image=True, shuffle=False)
    with unchanged(network):
        smidgen.predict_sparse_batches(network, loader, samples=2)
    assert all(part.drawn is None for part in network.maps.values())


@pytest.mark.parametrize("image", [False, True], ids=["mlp", "batchnorm"])
@pytest.mark.parametrize("density", [0.1, 1.0])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_folder_round_trip(tmp_path, image, density, deterministic, unchanged):
    model = resnet() if image else mlp()
    network = sparse_bayesian(model, density=density, deterministic=deterministic)
    found = fit.ssvi(network, blobs(image=image), training=QUICK).network
    save_sparse(found, tmp_path / "net")
    with unchanged(model):
        loaded = load_sparse(tmp_path / "net", model)
    assert_same(found, loaded)
    assert loaded.subset() == found.subset()
    assert loaded.priors == found.priors
    plain = deepcopy(model)
    plain.load_state_dict(loaded.densified())
    x, _ = next(iter(blobs(image=image, shuffle=False)))
    torch.testing.assert_close(plain.eval()(x), loaded(x))
    with pytest.raises(StoreError, match="exists already"):
        save_sparse(found, tmp_path / "net")
    save_sparse(found, tmp_path / "net", overwrite=True)


def test_a_folder_is_small(tmp_path):
    sizes = []
    for density in (0.1, 1.0):
        network = sparse_bayesian(mlp(2000), density=density)
        folder = save_sparse(network, tmp_path / f"{density}")
        sizes.append((folder / "sparse.safetensors").stat().st_size)
    # Biases are held whole on both sides, and every row has a count.
    rows = 4 * 2003 * 2
    assert (sizes[0] - rows) / sizes[1] < STATE_RATIO


def test_damaged_and_foreign_folders_are_refused(tmp_path):
    folder = save_sparse(sparse_bayesian(mlp(), density=0.2), tmp_path / "net")
    with pytest.raises(StoreError, match="does not fit this model"):
        load_sparse(folder, mlp(16))
    with pytest.raises(StoreError, match="is not a saved sparse network"):
        load_sparse(tmp_path, mlp())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "schema": 99}))
    with pytest.raises(StoreError, match="sparse network schema 99"):
        load_sparse(folder, mlp())
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "sparse.safetensors").open("ab") as file:
        file.write(b"0")
    with pytest.raises(StoreError, match="truncated or edited"):
        load_sparse(folder, mlp())


def test_a_trained_model_starts_from_its_largest_weights():
    model = mlp()
    network = sparse_bayesian(model, density=0.25, start="magnitude")
    for name, part in network.maps.items():
        flat = model.get_submodule(name).weight.detach().flatten()
        at = part.pattern.listed().long()
        assert torch.equal(part.means, flat[at])
        rest = torch.ones(len(flat), dtype=torch.bool)
        rest[at] = False
        assert flat[at].abs().min() >= flat[rest].abs().max()


@pytest.mark.parametrize("deterministic", [False, True])
def test_pruned_networks_predict_and_export(tmp_path, deterministic):
    found = fit.ssvi(sparse_bayesian(mlp(), density=1.0), blobs(), training=QUICK)
    less = pruned(found.network, 0.1, by="snr", deterministic=deterministic)
    assert less.stochastic != deterministic
    assert found.network.stochastic
    assert_same(less, load_sparse(save_sparse(less, tmp_path / "net"), mlp()))
    x, _ = next(iter(blobs(shuffle=False)))
    smidgen.predict_sparse(less, x, samples=3)
    assert less.count == round(0.1 * less.total)
    zeros = sum(int((w == 0).sum()) for n, w in less.densified().items() if "weight" in n)
    assert zeros == less.total - less.count


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"density": 0.0}, r"density must be in \(0, 1\], got 0.0"),
        ({"budget": "some"}, "budget must be 'uniform', 'erk' or 'global', got 'some'"),
        ({"scale": -1.0}, "scale must be > 0, got -1.0"),
        ({"start": "here"}, "start must be 'random' or 'magnitude', got 'here'"),
        ({"prior": {"0": 1.0}}, "a number for every map, got none for '2'"),
        ({"prior": 0.0}, "prior must be > 0, got 0.0"),
        ({"noise": "loud"}, "noise must be 'local', 'weights' or 'none', got 'loud'"),
        ({"path": "short"}, "path must be 'auto', 'dense' or 'sparse', got 'short'"),
    ],
)
def test_wrong_arguments_are_refused(options, words):
    with pytest.raises(ArgumentError, match=words):
        sparse_bayesian(mlp(), **options)


def test_wrong_training_is_refused():
    with pytest.raises(ArgumentError, match="epochs and passes must be 1 or more, got 0"):
        SparseTraining(epochs=0)
    with pytest.raises(ArgumentError, match="removal must be one of"):
        fit.ssvi(mlp(), blobs(), training=SparseTraining(removal="luck"))
    with pytest.raises(ArgumentError, match="num_data must be given"):
        fit.ssvi(mlp(), list(blobs()), training=QUICK)
    with pytest.raises(DataError, match="length of 1 or more"):
        fit.ssvi(mlp(), [], training=QUICK)
