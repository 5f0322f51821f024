"""The Laplace bridge: inverse of the layer from Dirichlets to Gaussians, and its limits."""

from __future__ import annotations

import pytest
import torch

import smidgen
from smidgen.outputs.links import at_temperatures, centre, directions
from tests.support.cases import Case, mlp, vectors
from tests.support.tolerances import EXACT, SOLVER


def bridge(logits, covariance, temperature=1.0):
    return at_temperatures("laplace-bridge", logits, covariance)(temperature)


def differences(covariance):
    """Covariance of the differences to class 0, from that of the logits."""
    lift = directions("laplace-bridge", covariance.shape[-1])
    return lift @ covariance @ lift.T


def gaussian_of(alpha):
    """MacKay's Gaussian in the softmax basis of a Dirichlet (C,): mean and covariance."""
    classes = len(alpha)
    mean = alpha.log() - alpha.log().mean()
    inverse = 1 / alpha
    shared = inverse[:, None] + inverse[None, :] - inverse.mean()
    return mean, inverse.diag() - shared / classes


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_the_bridge_leads_back_to_the_dirichlet_it_came_from(classes):
    generator = torch.Generator().manual_seed(classes)
    for _ in range(5):
        alpha = 30 * torch.rand(classes, dtype=torch.float64, generator=generator) + 0.1
        mean, covariance = gaussian_of(alpha)
        # Any shift of the logits leaves a softmax, and so the bridge, as it is.
        found = bridge((mean + 3)[None], differences(covariance)[None])
        torch.testing.assert_close(found.exp()[0], alpha / alpha.sum(), **EXACT)
        full = centre(differences(covariance), len(covariance))
        torch.testing.assert_close(full, covariance, **EXACT)


def test_the_bridge_equals_its_formula():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 5, dtype=torch.float64, generator=generator)
    root = torch.randn(4, 4, 4, dtype=torch.float64, generator=generator)
    covariance = root @ root.mT
    mean = (logits - logits.mean(-1, keepdim=True)) / 1.6
    variance = centre(covariance, 5).diagonal(dim1=1, dim2=2)
    sums = (-mean).exp().sum(-1, keepdim=True)
    alpha = (1 - 2 / 5 + mean.exp() / 25 * sums) / variance
    found = bridge(logits, covariance, temperature=1.6)
    torch.testing.assert_close(found.exp(), alpha / alpha.sum(-1, keepdim=True), **EXACT)


def test_many_covariances_and_temperatures_at_once():
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    root = torch.randn(2, 3, 3, 3, dtype=torch.float64, generator=generator)
    covariance, temperatures = root @ root.mT, torch.tensor([0.7, 1.9]).double()
    found = bridge(logits, covariance, temperatures)
    for index, temperature in enumerate(temperatures):
        expected = bridge(logits, covariance[index], float(temperature))
        torch.testing.assert_close(found[index], expected, **EXACT)


@pytest.mark.filterwarnings("ignore::smidgen.errors.SmidgenWarning")
def test_tuning_with_the_bridge_equals_predicting_with_it():
    model, (x, y) = Case("mlp", mlp, 3, vectors).make()
    posterior = smidgen.fit.laplace(model, [(x, y)], smidgen.select.last_layer(model))
    tuned = smidgen.calibrate(posterior, model, [(x, y)], link="laplace-bridge")
    found = smidgen.predict(tuned, model, x, link="laplace-bridge")
    nll = float(smidgen.evaluate.nll(found, y).mean())
    assert nll == pytest.approx(tuned.calibration.chosen_nll, rel=SOLVER["rtol"])
    plain = model(x).detach().log_softmax(-1)
    expected = -plain.gather(-1, y[:, None]).mean()
    assert tuned.calibration.map_nll == pytest.approx(float(expected))


def test_a_common_factor_of_the_variance_drops_out():
    """So the limit of small variances is not the softmax, but the same shape."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    covariance = differences(torch.eye(4).double()).expand(3, -1, -1)
    large, small = (bridge(logits, covariance * scale) for scale in (9.0, 1e-200))
    torch.testing.assert_close(large, small, **EXACT)
    assert (small.exp() - logits.softmax(-1)).abs().max() > 0.02
    none = bridge(logits, torch.zeros_like(covariance))
    torch.testing.assert_close(none, logits.log_softmax(-1), **EXACT)


@pytest.mark.parametrize("variance", [0.0, 1e-300, 0.4, 1e8])
def test_the_mean_of_two_classes_never_depends_on_the_variance(variance):
    logits = torch.tensor([[0.3, -1.0], [40.0, -400.0]]).double()
    found = bridge(logits, torch.full((2, 1, 1), variance).double(), temperature=2.0)
    torch.testing.assert_close(found, (logits / 2).log_softmax(-1), **EXACT)


def test_large_logits_and_tiny_variances_stay_finite():
    logits = torch.tensor([[1e5, 0.0, -1e5], [0.0, 1e-9, 700.0]]).double()
    still = torch.tensor([[0.0, 0.0], [0.0, 1.0]]).double()
    for covariance in (1e-300 * torch.eye(2).double(), still, 1e300 * still):
        temperature = torch.ones((), dtype=torch.float64, requires_grad=True)
        found = bridge(logits, covariance.expand(2, -1, -1), temperature)
        assert torch.isfinite(found).all()
        torch.testing.assert_close(found.exp().sum(-1), torch.ones(2).double(), **EXACT)
        found[:, 0].sum().backward()
        assert torch.isfinite(temperature.grad)


def test_a_class_that_does_not_vary_takes_it_all():
    """Documented, as is the advice: sample where that happens."""
    swing = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).double()  # f₁ = z, f₂ = −z, f₀ = 0
    found = bridge(torch.zeros(1, 3).double(), swing[None])
    assert float(found.exp()[0, 0]) > 0.999
