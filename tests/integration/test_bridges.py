"""The study of choices: one network, one budget, every choice with both posteriors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.integration.test_study_kinds import done

from smidgen.errors import ArgumentError
from smidgen.study.cell import Job
from smidgen.study.image_data import read_images
from smidgen.study.kinds import bridge
from smidgen.study.kinds.image_map import needed_networks

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")

FILE = """
title = "Squares"
[[data]]
name = "squares"
train = "train.npz"
test = "test.npz"
before = "before.npz"
validation_size = 40
[[cells]]
name = "map"
kind = "image-map"
hidden = [12]
epochs = 3
pretraining_epochs = 1
[[cells]]
name = "bridge"
kind = "bridge"
needs = ["map"]
fraction = 0.1
chain_steps = 40
sparse_epochs = 3
rates = [0.01]
steps = 12
every = 2
trial_steps = 4
samples = 4
each = {{ by = {choices} }}
[profiles.small]
seeds = [0]
"""


def write_images(folder):
    """Four by four pixels of three classes, told by which row is bright."""
    for place, (name, count) in enumerate({"train": 160, "test": 60, "before": 80}.items()):
        generator = np.random.default_rng(place)
        labels = generator.integers(0, 3, count)
        images = generator.normal(size=(count, 1, 4, 4)).astype("float32")
        images[np.arange(count), 0, labels + (name == "before")] += 1.5
        np.savez(folder / f"{name}.npz", x=images, y=labels)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bridges")
    write_images(folder)
    return *done(FILE.format(choices=list(bridge.CHOICES)), folder, folder), folder


def test_every_choice_is_as_large_and_has_both_posteriors(ledger):
    study, found, _ = ledger
    total = 16 * 12 + 12 + 12 * 3 + 3
    for cell in study.cells:
        if cell.kind != "bridge":
            continue
        methods = found.record(cell).results["methods"]
        by = cell.settings["by"]
        assert [m["name"] for m in methods] == [f"laplace-{by}", f"swag-{by}"]
        for method in methods:
            assert method["scores"]["nll"]["value"] > 0
            if by == "last-layer":
                assert method["weights"] == 12 * 3 + 3
            elif by == "sparse-kfac":
                assert 0.02 * total < method["weights"] <= 0.1 * total
            else:
                # SSVI counts weights without biases.
                assert method["weights"] == pytest.approx(0.1 * total, abs=2)


def test_choices_differ_and_are_of_the_tuned_network(ledger):
    study, found, folder = ledger
    first = study.cells[0]
    data = dict(first.data)
    job = Job(data, 0, {}, folder, (found.found(first),), folder / "a", folder / "w")
    images = read_images(job)
    before, tuned = needed_networks(job, images)
    assert not torch.equal(before[2].weight, tuned[2].weight)
    settings = dict(study.cells[1].settings)
    sets = []
    for by in ("random", "magnitude", "bayestune", "ssvi"):
        told = bridge.Settings(**{**settings, "by": by, "rates": (0.01,)})
        subset = bridge.chosen(told, before, tuned, images, 0)
        assert set(subset.universe) <= set(dict(tuned.named_parameters()))
        sets.append(subset)
    assert len({each.digest() for each in sets}) == len(sets)
    told = bridge.Settings(**{**settings, "by": "luck", "rates": (0.01,)})
    with pytest.raises(ArgumentError, match="by must be one of"):
        bridge.chosen(told, before, tuned, images, 0)


def test_a_bridge_needs_networks(ledger):
    study, _, folder = ledger
    job = Job(dict(study.cells[0].data), 0, {}, folder, (), folder / "a", folder / "w")
    with pytest.raises(ArgumentError, match="image-map"):
        needed_networks(job, read_images(job))
