"""Noise of its own for each output of a regression, against the closed form."""

from __future__ import annotations

from dataclasses import replace
from math import pi

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import smidgen
from smidgen.errors import ArgumentError, DataError
from tests.support.cases import Case, linear, vectors
from tests.support.oracles import linear_regression_posterior
from tests.support.tolerances import EXACT, Z

PRECISION = 0.3
ROWS = 60


def data(model, seed=0, rows=ROWS):
    """Two outputs whose noise variances differ by a factor of about 100."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, dtype=torch.float64, generator=generator)
    noise = torch.randn(rows, 2, dtype=torch.float64, generator=generator)
    y = model(x).detach() + noise * torch.tensor([2.0, 0.2]).double()
    return [(x[i : i + 20], y[i : i + 20]) for i in range(0, rows, 20)]


@pytest.fixture(params=["kron", "ekfac", "full", "diag"])
def fitted(request):
    model, _ = Case("linear", linear, 2, vectors, "gaussian").make()
    batches = data(model)
    posterior = smidgen.fit.laplace(
        model,
        batches,
        smidgen.select.last_layer(model),
        structure=request.param,
        precision=PRECISION,
        settings=smidgen.fit.LaplaceSettings(noise="per-output"),
    )
    x, y = (torch.cat(each) for each in zip(*batches, strict=True))
    noises = (y - model(x).detach()).square().mean(0)
    return posterior, model, x, y, noises


def test_the_fitted_noises_are_the_mean_squares(fitted):
    posterior, _, _, _, noises = fitted
    likelihood = posterior.likelihood
    relative = torch.tensor(likelihood.relative, dtype=torch.float64)
    assert float(noises[0] / noises[1]) > 50
    torch.testing.assert_close(likelihood.noise * relative, noises, **EXACT)
    assert float(relative.log().sum()) == pytest.approx(0, abs=1e-12)


def closed_form(x, noises):
    """Function variance (N, C) of exact regression, each output with its own noise."""
    design = torch.cat([torch.ones(len(x), 1).double(), x], 1)
    covariances = [linear_regression_posterior(design, v, PRECISION) for v in noises]
    return torch.stack([(design @ c * design).sum(-1) for c in covariances], -1)


def test_the_predictive_is_exact_bayesian_regression_of_each_output(fitted):
    posterior, model, x, y, noises = fitted
    if posterior.structure == "diag":
        pytest.skip("the exact posterior of a weight is not diagonal")
    found = smidgen.predict(posterior, model, (x, y))
    torch.testing.assert_close(found.mean, model(x).detach(), **EXACT)
    torch.testing.assert_close(found.variance, closed_form(x, noises), **EXACT)
    torch.testing.assert_close(found.noise, noises.expand(ROWS, -1), **EXACT)
    total = closed_form(x, noises) + noises
    squares = (y - model(x).detach()).square()
    expected = 0.5 * ((2 * pi * total).log() + squares / total).sum(-1)
    torch.testing.assert_close(smidgen.evaluate.nll(found, y), expected, **EXACT)


def test_weight_samples_have_the_same_variances(fitted):
    posterior, model, x, _, noises = fitted
    count = 2000
    found = smidgen.predict(posterior, model, x[:5], samples=count)
    exact = smidgen.predict(posterior, model, x[:5])
    error = exact.variance * (2 / (count - 1)) ** 0.5
    assert ((found.variance - exact.variance).abs() < Z * error).all()
    torch.testing.assert_close(found.noise, noises.expand(5, -1), **EXACT)


def test_the_log_likelihood_is_that_of_the_noises(fitted):
    posterior, model, x, y, noises = fitted
    squares = (y - model(x).detach()).square()
    expected = float(-0.5 * ((2 * pi * noises).log() + squares / noises).sum())
    assert posterior.log_likelihood == pytest.approx(expected)
    found = posterior.likelihood.log_prob(model(x).detach(), y).sum()
    assert float(found) == pytest.approx(expected)


def test_it_comes_back_from_the_store(fitted, tmp_path):
    posterior, model, x, y, _ = fitted
    smidgen.save(posterior, tmp_path / "saved")
    loaded = smidgen.load(tmp_path / "saved", model)
    assert loaded == posterior
    assert loaded.likelihood.relative == posterior.likelihood.relative
    before, after = (smidgen.predict(each, model, (x, y)) for each in (posterior, loaded))
    torch.testing.assert_close(after.total_variance, before.total_variance, **EXACT)


def test_drawn_labels_have_the_noise_of_their_output():
    likelihood = smidgen.Gaussian(2, noise=3.0, relative=(10.0, 0.1))
    outputs = torch.zeros(4000, 2).double()
    generator = torch.Generator().manual_seed(0)
    drawn = likelihood.draw_targets(outputs, generator)
    gradient = likelihood.gradient(outputs, drawn)
    columns = likelihood.root_columns(outputs[:1])
    expected = torch.einsum("kbc,kbd->cd", columns, columns)
    torch.testing.assert_close(expected, torch.tensor([[0.1, 0], [0, 10.0]]).double())
    found = gradient.T @ gradient / len(drawn)
    scale = torch.outer(expected.diagonal(), expected.diagonal()).sqrt()
    assert ((found - expected).abs() < Z * scale * (2 / len(drawn)) ** 0.5).all()


def test_given_noises_are_scaled_to_a_geometric_mean_of_one():
    likelihood = smidgen.Gaussian(2, noise=3.0, relative=(8.0, 2.0))
    assert likelihood.noise == pytest.approx(12.0)
    assert likelihood.relative == pytest.approx((2.0, 0.5))
    assert replace(likelihood) == likelihood
    model, _ = Case("linear", linear, 2, vectors, "gaussian").make()
    batches = data(model)
    problem = smidgen.Problem(model, likelihood)
    posterior = smidgen.fit.laplace(problem, batches, smidgen.select.last_layer(model))
    found = sum(
        posterior.likelihood.log_prob(model(x).detach(), y).sum() for x, y in batches
    )
    assert posterior.log_likelihood == pytest.approx(float(found))


@pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
@pytest.mark.parametrize("what", ["joint", "precision"])
def test_tuning_equals_predicting_anew(what):
    model, _ = Case("linear", linear, 2, vectors, "gaussian").make()
    subset = smidgen.select.last_layer(model)
    posterior = smidgen.fit.laplace(
        model, data(model), subset, settings=smidgen.fit.LaplaceSettings(noise="per-output")
    )
    validation = data(model, seed=5)
    tuned = smidgen.calibrate(
        posterior,
        model,
        validation,
        settings=smidgen.fit.CalibrationSettings(what=what, refine=False),
    )
    targets = torch.cat([y for _, y in validation])
    predictive = smidgen.predict_batches(tuned, model, validation)
    found = float(smidgen.evaluate.nll(predictive, targets).mean())
    assert found == pytest.approx(tuned.calibration.chosen_nll, rel=EXACT["rtol"])


@pytest.mark.parametrize("structure", ["kron", "ekfac"])
def test_a_loader_whose_workers_last_is_read_whole(structure):
    """It has one iterator, which a second reading starts anew under a first one."""
    model, _ = Case("linear", linear, 2, vectors, "gaussian").make()
    rows = TensorDataset(*(torch.cat(each) for each in zip(*data(model), strict=True)))
    lasting = DataLoader(rows, 20, num_workers=1, persistent_workers=True)
    subset = smidgen.select.last_layer(model)
    found, expected = (
        smidgen.fit.laplace(
            model,
            each,
            subset,
            structure=structure,
            settings=smidgen.fit.LaplaceSettings(noise="per-output"),
        )
        for each in (lasting, DataLoader(rows, 20))
    )
    assert found.num_data == ROWS
    assert found == expected


def test_refusals():
    model, batch = Case("linear", linear, 2, vectors, "gaussian").make()
    subset = smidgen.select.last_layer(model)
    with pytest.raises(ArgumentError, match="readable twice for noise"):
        smidgen.fit.laplace(
            model,
            iter([batch]),
            subset,
            settings=smidgen.fit.LaplaceSettings(noise="per-output"),
        )
    perfect = batch[1].clone()
    perfect[:, 1] = model(batch[0]).detach()[:, 1]
    with pytest.raises(DataError, match="differ from every output"):
        smidgen.fit.laplace(
            model,
            [(batch[0], perfect)],
            subset,
            settings=smidgen.fit.LaplaceSettings(noise="per-output"),
        )
    classes = smidgen.Problem(model, smidgen.Categorical(2))
    with pytest.raises(ArgumentError, match="is for regression"):
        smidgen.fit.laplace(
            classes,
            [batch[0]],
            subset,
            settings=smidgen.fit.LaplaceSettings(noise="per-output"),
        )
    with pytest.raises(ArgumentError, match="relative must be 2 numbers > 0"):
        smidgen.Gaussian(2, relative=(1.0, -1.0))
