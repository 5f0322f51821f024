"""Saved and loaded, every posterior predicts the same numbers to the last bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import smidgen
from smidgen.curvature.operators import STRUCTURES
from smidgen.posterior.registry import POSTERIORS
from smidgen.posterior.swag import COVARIANCE_KINDS
from tests.support.posteriors import LIKELIHOODS, QUICK, draw_batches

pytestmark = pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")

FORMS = {
    "laplace": {name: {"structure": name} for name in STRUCTURES},
    "swag": {
        name: {"settings": replace(QUICK["swag"], covariance=name)}
        for name in COVARIANCE_KINDS
    },
    "ssvi": {"": {"settings": QUICK["ssvi"]}},
}
"""Every form of a method; one that is not named here is fitted as it is."""

CHOICES = [
    pytest.param((method, arguments), id=f"{method}-{form}" if form else method)
    for method in POSTERIORS
    for form, arguments in FORMS.get(method, {"": {}}).items()
]


class Wide(nn.Module):
    """A convolution and layers wide enough that the order in memory decides how sums round."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.look = nn.Conv2d(2, 12, 2)
        self.hidden, self.leave = nn.Linear(48, 40), nn.Linear(40, outputs)

    def forward(self, x):
        x = torch.tanh(self.look(x.unflatten(1, (2, 3, 3)))).flatten(1)
        return self.leave(torch.tanh(self.hidden(x)))


@pytest.fixture(scope="module", params=LIKELIHOODS)
def kind(request):
    return request.param


@pytest.fixture(scope="module", params=CHOICES)
def fitted(request, kind):
    method, arguments = request.param
    likelihood = LIKELIHOODS[kind]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Wide(likelihood.outputs)
    batches = draw_batches(model, likelihood, inputs=18)
    # A joint matrix is as wide as all that is chosen.
    percent = 15 if arguments.get("structure") == "full" else 60
    subset = smidgen.select.sparse_kfac(model, percent=percent)
    problem = smidgen.Problem(model, likelihood)
    fit = getattr(smidgen.fit, method)
    posterior = fit(problem, batches, subset, **arguments, progress=False)
    return posterior.with_temperature(1.3), problem, batches


def tensors_of(predictive):
    return {k: v for k, v in vars(predictive).items() if isinstance(v, Tensor)}


@pytest.mark.parametrize("samples", [None, 5])
def test_a_loaded_one_predicts_the_same_bits(fitted, tmp_path, samples):
    posterior, problem, batches = fitted
    loaded = smidgen.load(smidgen.save(posterior, tmp_path / "saved"), problem)
    assert loaded == posterior
    for batch in batches:
        before, after = (
            tensors_of(smidgen.predict(each, problem, batch, samples=samples))
            for each in (posterior, loaded)
        )
        assert before.keys() == after.keys()
        for name, tensor in before.items():
            assert torch.equal(tensor, after[name]), name


def test_a_loaded_one_draws_the_same_weights(fitted, tmp_path):
    posterior, problem, _ = fitted
    loaded = smidgen.load(smidgen.save(posterior, tmp_path / "saved"), problem)
    before, after = (
        list(
            each.sampler(problem.model)([torch.Generator().manual_seed(s) for s in (1, 2)])
        )
        for each in (posterior, loaded)
    )
    for left, right in zip(before, after, strict=True):
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_loaded_one_is_calibrated_to_the_same_bits(fitted, tmp_path):
    posterior, problem, batches = fitted
    loaded = smidgen.load(smidgen.save(posterior, tmp_path / "saved"), problem)
    before, after = (
        smidgen.calibrate(each, problem, batches, progress=False)
        for each in (posterior, loaded)
    )
    assert before == after


def test_what_is_stored_lies_in_memory_as_it_does_in_the_file(fitted):
    """Row after row: else products of the loaded would round in another order."""
    posterior, _, _ = fitted
    tensors, _ = posterior.pack()
    assert all(tensor.is_contiguous() for tensor in tensors.values())
