"""SSVI interrupted: it goes on bit for bit, and only with its own checkpoint."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from smidgen import fit
from smidgen.errors import StoreError, StructureError
from smidgen.fit import SsviSettings
from smidgen.outputs.likelihood import Bernoulli
from smidgen.outputs.problem import Problem
from smidgen.runtime.checkpoint import write_checkpoint
from smidgen.sparse import SparseSettings, make_sparse
from smidgen.sparse.pattern import Pattern
from smidgen.sparse.rewire import change_active_set, replace_weights
from tests.support.sparse_cases import QUICK, assert_same, blobs, made_sparse, mlp, resnet


class StopsAfter:
    """A loader that is interrupted in the epoch after some whole ones."""

    def __init__(self, loader, epochs):
        self.loader, self.left = loader, epochs
        self.dataset, self.generator = loader.dataset, loader.generator
        self.sampler = loader.sampler

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        for place, batch in enumerate(self.loader):
            if self.left <= 0 and place == 3:
                raise KeyboardInterrupt
            yield batch
        self.left -= 1


def own_generator(image=False):
    return blobs(image=image)


def of_the_sampler(image=False):
    data = blobs(image=image).dataset
    generator = torch.Generator().manual_seed(11)
    return DataLoader(data, batch_size=30, sampler=RandomSampler(data, generator=generator))


def global_order(image=False):
    return DataLoader(blobs(image=image).dataset, batch_size=30, shuffle=True)


def interrupted(network, training, loader, place, validation=None, epochs=2):
    """Stop after some epochs, and go on."""
    stopping = StopsAfter(loader(), epochs)
    with pytest.raises(KeyboardInterrupt):
        fit.ssvi(
            network, stopping, validation=validation, settings=training, checkpoint=place
        )
    return fit.ssvi(
        network, loader(), validation=validation, settings=training, checkpoint=place
    )


def assert_same_course(left, right):
    assert_same(left.network, right.network)
    assert left.changes == right.changes
    for one, two in zip(left.history, right.history, strict=True):
        assert replace(one, seconds=0.0) == replace(two, seconds=0.0)


@pytest.mark.parametrize("image", [False, True], ids=["mlp", "batchnorm"])
@pytest.mark.parametrize("kind", ["adam", "sgd"])
@pytest.mark.parametrize("path", ["dense", "sparse"])
def test_resuming_is_bitwise(tmp_path, image, kind, path):
    model = resnet() if image else mlp()
    network = make_sparse(
        model, density=0.3, settings=SparseSettings(budget="global", path=path)
    )
    training = SsviSettings(epochs=4, learning_rate=0.02, every=3, optimiser=kind)
    held = blobs(image=image, seed=5)
    whole = fit.ssvi(network, blobs(image=image), validation=held, settings=training)
    assert whole.changes
    resumed = interrupted(
        network, training, lambda: blobs(image=image), tmp_path / "run", held
    )
    assert_same_course(whole, resumed)


@pytest.mark.parametrize("loader", [own_generator, of_the_sampler, global_order])
def test_resuming_is_bitwise_with_every_source_of_the_order(tmp_path, loader):
    network = make_sparse(mlp(), density=0.3, settings=SparseSettings(path="sparse"))
    training = SsviSettings(epochs=3, learning_rate=0.02, every=3)
    whole = fit.ssvi(network, loader(), settings=training)
    assert_same_course(whole, interrupted(network, training, loader, tmp_path / "run"))


def test_a_finished_training_is_only_read_back(tmp_path):
    network = make_sparse(mlp(), density=0.3)
    found = fit.ssvi(network, blobs(), settings=QUICK, checkpoint=tmp_path / "run")
    again = fit.ssvi(network, blobs(), settings=QUICK, checkpoint=tmp_path / "run")
    assert_same_course(found, again)
    assert [p.path for p in again.network.layers.values()] == [
        p.path for p in found.network.layers.values()
    ]


BASE = {"density": 0.3, "path": "dense"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"density": 0.5}, r"there density is 0.29\d*, here 0.5"),
        ({"budget": "erk"}, "there budget is 'uniform', here 'erk'"),
        ({"deterministic": True}, "there deterministic is False, here True"),
        ({"prior": 2.0}, "there prior of 0 is .*, here 2.0"),
        ({"noise": "weights"}, "there noise of 0 is 'local', here 'weights'"),
        ({"path": "sparse"}, "there path of 0 is 'dense', here 'sparse'"),
        ({"seed": 5}, "there first weights is"),
        ({"scale": 0.5}, "there first weights is"),
        ({"start": "magnitude"}, "there first weights is"),
    ],
)
def test_a_checkpoint_of_another_network_is_refused_by_name(tmp_path, options, words):
    place = tmp_path / "run"
    training = replace(QUICK, epochs=1, every=2)
    fit.ssvi(made_sparse(mlp(), **BASE), blobs(), settings=training, checkpoint=place)
    other = made_sparse(mlp(), **{**BASE, **options})
    with pytest.raises(StoreError, match=words):
        fit.ssvi(other, blobs(), settings=training, checkpoint=place)


def test_a_checkpoint_of_another_training_is_refused_by_name(tmp_path):
    place = tmp_path / "run"
    training = replace(QUICK, epochs=1, every=2)
    network = made_sparse(mlp(), **BASE)

    def again(model=network, told=training, **more):
        fit.ssvi(model, blobs(), settings=told, checkpoint=place, **more)

    again()
    with pytest.raises(StoreError, match="there temperature is 0.1, here 0.2"):
        again(told=replace(training, temperature=0.2))
    with pytest.raises(StoreError, match="there seed is 0, here 1"):
        again(seed=1)
    with pytest.raises(StoreError, match="there num_data is 300, here 7"):
        again(told=replace(training, num_data=7))
    with pytest.raises(StoreError, match="there shape of 0 is"):
        again(made_sparse(mlp(64), **BASE))
    onehot = Problem(network, Bernoulli(3), targets=lambda b: torch.eye(3)[b[1]])
    with pytest.raises(StoreError, match="there likelihood is 'Categorical"):
        again(onehot)


def test_a_checkpoint_never_replaces_something_else(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(StoreError, match="is not a checkpoint file"):
        fit.ssvi(mlp(), blobs(), settings=QUICK, checkpoint=tmp_path / "thesis.txt")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    with pytest.raises(StoreError, match="checkpoint must be a file, got the folder"):
        fit.ssvi(mlp(), blobs(), settings=QUICK, checkpoint=tmp_path)


def test_an_infinite_score_does_not_end_a_training(tmp_path):
    """A validation NLL may be infinite: the checkpoint holds it as it is."""
    held = [(torch.full((4, 6), 1e30), torch.arange(4) % 3)]
    network = make_sparse(mlp(), density=0.3)
    first, second = (
        fit.ssvi(
            network, blobs(), validation=held, settings=QUICK, checkpoint=tmp_path / "run"
        )
        for _ in range(2)
    )
    assert first.history[-1].nll > 1e20
    assert second.history == first.history


def test_scales_that_a_map_has_not_are_refused():
    whole = Pattern(32, 6)
    part = make_sparse(mlp(), density=0.3).layers["0"]
    with pytest.raises(StructureError, match="log_scales must be given .* got none"):
        replace_weights(part, whole, torch.zeros(192), None, None)
    points = make_sparse(mlp(), density=0.3, settings=SparseSettings(deterministic=True))
    with pytest.raises(StructureError, match="log_scales must be None .* got some"):
        replace_weights(points.layers["0"], whole, torch.zeros(192), torch.zeros(192), None)
    change_active_set(points.layers["0"], torch.arange(7))


def test_a_loader_is_left_as_it_was_and_the_same_call_gives_the_same_network():
    network = make_sparse(mlp(), density=0.3, settings=SparseSettings(path="sparse"))
    loader = blobs()
    list(islice(loader, 1))
    state = loader.generator.get_state()
    first, second, other = (
        fit.ssvi(network, loader, settings=QUICK, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(loader.generator.get_state(), state)
    assert_same_course(first, second)
    assert first.network.subset() != other.network.subset()


def test_a_checkpoint_of_an_older_format_is_refused_in_words(tmp_path):
    write_checkpoint(tmp_path / "run", {"step": torch.tensor(3)}, {"method": "ssvi"})
    with pytest.raises(StoreError, match="there checkpoint format is None, here 2"):
        fit.ssvi(mlp(), blobs(), settings=QUICK, checkpoint=tmp_path / "run")
