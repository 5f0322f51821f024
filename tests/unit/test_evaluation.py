"""`compare`: posteriors beside their baselines on test data."""

from __future__ import annotations

import weakref

import pytest
import torch
from tests.support.cases import Case, mlp, vectors
from torch.utils.data import DataLoader, TensorDataset

import smidgen
from smidgen.errors import ArgumentError


@pytest.fixture(scope="module")
def made():
    model = Case("mlp", mlp, 3, vectors).make()[0]
    rows = TensorDataset(torch.randn(60, 4, dtype=torch.float64), torch.randint(3, (60,)))
    subset = smidgen.select.last_layer(model)
    return model, rows, smidgen.fit.laplace(model, DataLoader(rows, 20), subset)


def test_a_loader_that_shuffles_gives_the_scores_of_one_that_does_not(made):
    model, rows, posterior = made
    scores = []
    before = torch.get_rng_state()
    for shuffle in (False, True):
        # Its order is of the caller's random state, which stays as it was.
        loader = DataLoader(rows, 20, shuffle=shuffle)
        record = smidgen.compare(model, posterior, loader, progress=False)
        found = {each["name"]: each["scores"] for each in record.results["methods"]}
        scores.append([of["nll"]["value"] for of in found.values()])
    assert scores[0] == pytest.approx(scores[1], rel=1e-12)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["map", "temperature", " "])
def test_a_name_that_is_a_baselines_is_refused_before_any_pass(made, name):
    model, _, posterior = made
    unread = iter([])
    with pytest.raises(
        ArgumentError, match="name of a posterior must be none of map, temp"
    ):
        smidgen.compare(model, {name: posterior}, unread)


def test_one_shifted_set_is_in_memory_at_a_time(made):
    model, rows, posterior = made
    alive, most = weakref.WeakSet(), []

    class Batches:
        def __iter__(self):
            for x, y in DataLoader(rows, 20):
                batch = x.clone()
                alive.add(batch)
                most.append(len(alive))
                yield batch, y

    shifted = {str(i): Batches() for i in range(4)}
    record = smidgen.compare(
        model, posterior, DataLoader(rows, 20), shifted=shifted, progress=False
    )
    assert set(record.results["methods"][0]["detection"]) == set(shifted)
    # A set is three batches; the last of the set before may still be held.
    assert max(most) <= 2 * 3
