"""The noise of a regression along its training: what SSVI fits."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import smidgen
from smidgen import fit
from smidgen.errors import DataError
from smidgen.fit import SsviSettings
from smidgen.outputs.residuals import RunningNoise
from smidgen.sparse import SparseSettings, make_sparse
from tests.support.sparse_cases import assert_same
from tests.support.tolerances import Z

DENSE = SsviSettings(epochs=40, learning_rate=0.02, density=1.0)
SPARSE = SsviSettings(epochs=40, learning_rate=0.02, density=0.5, every=50)


def loader_of(x, y):
    order = torch.Generator().manual_seed(1)
    return DataLoader(TensorDataset(x, y), 50, shuffle=True, generator=order)


def linear(rows=500, noises=(0.01, 0.01)):
    """Two outputs of four inputs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 4, generator=generator)
    weights = torch.tensor([[1.0, 0.0, -2.0, 0.0], [0.0, 1.5, 0.0, 1.0]])
    drawn = torch.randn(rows, 2, generator=generator)
    torch.manual_seed(0)
    return nn.Linear(4, 2), x, x @ weights.T + drawn * torch.tensor(noises).sqrt()


def curved(rows=600):
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(rows, 1, generator=generator) - 2
    y = torch.sin(2 * x) + 0.1 * torch.randn(rows, 1, generator=generator)
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1)), x, y


def deviations(found, true, count):
    """How many standard errors of a mean of squares a noise is off."""
    return abs(found / true - 1) / (2 / count) ** 0.5


@pytest.mark.parametrize(("make", "settings"), [(linear, DENSE), (curved, SPARSE)])
def test_the_true_noise_is_found_and_stays(make, settings, tmp_path):
    model, x, y = make()
    problem = smidgen.Problem(model, smidgen.Gaussian(y.shape[1]))
    found = fit.ssvi(problem, loader_of(x, y), settings=settings)
    assert deviations(found.likelihood.noise, 0.01, y.numel()) < Z
    # What maximises the ELBO: the residual of the mean, and the variance of the draws.
    predictive = smidgen.predict(found, model, x, samples=64)
    parts = (y - predictive.mean).square().mean() + predictive.variance.mean()
    assert found.likelihood.noise == pytest.approx(float(parts), rel=0.05)
    folder = smidgen.save(found, tmp_path / "net")
    loaded = smidgen.load(folder, model)
    assert loaded.likelihood == found.likelihood
    _, x, y = make(900)
    held_out, test = [(x[600:700], y[600:700])], [(x[700:], y[700:])]
    tuned = smidgen.calibrate(loaded, problem, held_out)
    assert deviations(tuned.likelihood.noise, 0.01, 100 * y.shape[1]) < Z
    record = smidgen.compare(problem, tuned, test)
    scores = record.results["methods"][-1]["scores"]
    # Of N(0, 0.01): 0.5 log(2π e 0.01) for each output.
    assert scores["nll"]["value"] == pytest.approx(-0.884 * y.shape[1], abs=0.25)


def test_each_output_has_its_noise_where_the_likelihood_says_so():
    noises = (0.01, 0.25)
    model, x, y = linear(noises=noises)
    likelihood = smidgen.Gaussian(2, noise=3.0, relative=(1.0, 1.0))
    found = fit.ssvi(
        smidgen.Problem(model, likelihood), loader_of(x, y), settings=DENSE
    ).likelihood
    for ratio, true in zip(found.relative, noises, strict=True):
        assert deviations(found.noise * ratio, true, len(y)) < Z


def test_a_resumed_regression_is_bitwise_the_same(tmp_path):
    model, x, y = curved()
    network = make_sparse(model, density=0.5, settings=SparseSettings(path="sparse"))
    seen = []

    def run(stop_after=None, checkpoint=None):
        seen.clear()

        def forward(network, batch):
            seen.append(1)
            if len(seen) == stop_after:
                raise KeyboardInterrupt
            return network(batch[0])

        problem = smidgen.Problem(network, smidgen.Gaussian(1), forward)
        return fit.ssvi(
            problem,
            loader_of(x, y),
            validation=[(x, y)],
            settings=SsviSettings(epochs=4, learning_rate=0.02, every=5),
            checkpoint=checkpoint,
        )

    whole, place = run(), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(len(seen) * 2 // 3, place)
    resumed = run(checkpoint=place)
    assert resumed.likelihood == whole.likelihood
    assert_same(resumed.network, whole.network)
    assert [epoch.nll for epoch in resumed.history] == [e.nll for e in whole.history]


def test_a_running_noise_forgets_and_is_restored():
    noise = RunningNoise(smidgen.Gaussian(1, noise=7.0), steps=10)
    for size in (10.0,) * 5 + (1.0,) * 200:
        likelihood = noise.add(torch.zeros(4, 1), torch.full((4, 1), size))
    assert likelihood.noise == pytest.approx(1.0, abs=1e-6)
    other = RunningNoise(smidgen.Gaussian(1), steps=10)
    assert other.restore(noise.state()) == likelihood
    with pytest.raises(ValueError, match="noise of 1 outputs"):
        RunningNoise(smidgen.Gaussian(2), steps=10).restore(noise.state())
    with pytest.raises(DataError, match="all residuals are zero"):
        RunningNoise(smidgen.Gaussian(1), 3).add(torch.ones(2, 1), torch.ones(2, 1))
