"""What a sparse network costs, and the outputs of its draws."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from smidgen import Problem, SparsePosterior, make_sparse, predict_batches
from smidgen.errors import DataError
from smidgen.fit import SsviSettings
from smidgen.outputs.likelihood import Categorical
from smidgen.posterior.sampling import sampled_outputs
from smidgen.sparse import SparseSettings
from smidgen_studies.methods.sparse_costs import costs
from tests.support.tolerances import EXACT


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4))


@pytest.fixture
def inputs():
    return torch.randn(8, 20, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_mixture_of_the_draws_is_the_prediction(model, inputs, deterministic):
    network = make_sparse(
        model, density=0.3, settings=SparseSettings(deterministic=deterministic)
    )
    batches = [(inputs[:5],), (inputs[5:],)]
    posterior = SparsePosterior(network=network, likelihood=Categorical(4), temperature=1.7)
    runs = sampled_outputs(Problem(model), posterior, batches, samples=3)
    outputs = torch.cat([each for _, each in runs], 1)
    assert outputs.shape == (2 if deterministic else 3, 8, 4)
    found = predict_batches(posterior, model, batches, samples=3)
    mixed = Categorical(4).mixture(outputs, 1.7)
    torch.testing.assert_close(mixed.log_probs, found.log_probs, **EXACT)
    with pytest.raises(DataError, match="no batch"):
        predict_batches(posterior, model, [])


def test_costs_leave_the_networks_as_they_were(model, inputs, unchanged):
    network, twin = (
        make_sparse(model, density=d, settings=SparseSettings(path="dense"))
        for d in (0.1, 1.0)
    )
    labels = torch.arange(8) % 4
    with unchanged(network), unchanged(twin):
        found = costs(network, twin, (inputs, labels), SsviSettings())
    assert found["seconds_ratio"] > 0
    assert found["paths"] == ["dense", "dense"]
    assert found["active_operations_ratio"] < found["operations_ratio"]
