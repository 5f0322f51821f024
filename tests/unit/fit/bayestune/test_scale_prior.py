"""The generalised inverse Gaussian means against numerical integration."""

from __future__ import annotations

import pytest
import torch

from smidgen.errors import ArgumentError
from smidgen.fit.bayestune.scale_prior import ScalePrior
from tests.support.tolerances import DRIFT, EXACT, INTEGRATED, ROUNDED

PRIORS = [(0.01, 100.0), (0.3, 1e4), (0.5, 1.0), (1.0, 3.0), (1.7, 0.01), (3.0, 2.0)]
priors = pytest.mark.parametrize(("shape", "rate"), PRIORS)


def integrated(prior, displacements, power):
    """E[λ^power | Δ] by the trapezoidal rule over log λ, in float64.

    The integrand falls doubly exponentially at both ends, where the rule converges faster
    than any power of the step.
    """
    found = []
    for displacement in displacements:
        # Narrow around its mode where Δ is large; else as wide as any λ that counts.
        mode = float((displacement / prior.rate).sqrt().log())
        width = float((1 + 2 * (displacement * prior.rate).sqrt()) ** -0.5)
        low, high = (-160, 60) if width > 0.5 else (mode - 30 * width, mode + 30 * width)
        logs = torch.linspace(low, high, 220 * 64 + 1, dtype=torch.float64)
        exponent = (prior.shape - 1) * logs - prior.rate * logs.exp()
        exponent = exponent - displacement * (-logs).exp()
        above = torch.logsumexp(exponent + power * logs, 0)
        found.append((above - torch.logsumexp(exponent, 0)).exp())
    return torch.stack(found)


@priors
def test_both_means_equal_the_integrals_over_the_whole_range(shape, rate):
    prior = ScalePrior(shape, rate)
    displacements = torch.logspace(-40, 8, 97, dtype=torch.float64) / rate
    torch.testing.assert_close(
        prior.mean(displacements), integrated(prior, displacements, 1), **INTEGRATED
    )
    torch.testing.assert_close(
        prior.inverse_mean(displacements),
        integrated(prior, displacements, -1),
        **INTEGRATED,
    )


@priors
def test_single_precision_agrees_and_is_monotone(shape, rate):
    prior = ScalePrior(shape, rate)
    displacements = torch.logspace(-30, 6, 40_001)
    found = prior.mean(displacements)
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found.double(), prior.mean(displacements.double()), **ROUNDED
    )
    assert (found.diff() >= -ROUNDED["rtol"] * found[1:]).all()


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_what_is_no_number_stays_none(kind):
    broken = torch.tensor([torch.nan, -torch.nan, 1.0], dtype=kind)
    assert ScalePrior().mean(broken).isnan().tolist() == [True, True, False]


@priors
def test_the_limits_at_zero_are_closed_forms(shape, rate):
    prior = ScalePrior(shape, rate)
    for kind in (torch.float32, torch.float64):
        zero = torch.zeros(2, 3, dtype=kind)
        assert prior.mean(zero).shape == (2, 3)
        assert torch.allclose(prior.mean(zero), zero + max(shape - 1, 0) / rate)
    limit = rate / (shape - 2) if shape > 2 else torch.inf
    assert prior.inverse_mean(torch.zeros(1, dtype=torch.float64)) == limit


@priors
def test_far_out_both_go_with_the_root(shape, rate):
    far = torch.tensor([1e30, 1e200], dtype=torch.float64)
    prior = ScalePrior(shape, rate)
    torch.testing.assert_close(prior.mean(far), (far / rate).sqrt(), **INTEGRATED)
    torch.testing.assert_close(prior.inverse_mean(far), (rate / far).sqrt(), **INTEGRATED)


@priors
def test_the_quick_pull_is_close(shape, rate):
    prior = ScalePrior(shape, rate)
    squares = torch.logspace(-16, 6, 500, dtype=torch.float64)
    root = squares.sqrt()
    torch.testing.assert_close(
        prior.pull(squares) * root, prior.inverse_mean(root), **DRIFT
    )


@priors
def test_the_pull_is_minus_the_slope_of_the_log_density(shape, rate):
    """−d/dΔ of log p(θ), whose tail is known: p = −d/dΔ P(|θ − θ̄| > Δ) / 2."""
    prior = ScalePrior(shape, rate)
    at, step = 0.7 / rate, 1e-4 / rate
    tails = [prior.tail(at + i * step) for i in (-1.5, -0.5, 0.5, 1.5)]
    left, middle, right = (a - b for a, b in zip(tails, tails[1:], strict=False))
    slope = -(right - left) / (2 * step) / middle
    found = float(prior.inverse_mean(torch.tensor([at], dtype=torch.float64)))
    assert found == pytest.approx(slope, rel=DRIFT["rtol"])


def test_the_mean_scale_under_the_prior_is_alpha_over_beta():
    """E over Δ of E[λ | Δ] is E[λ]: the two closed forms belong to one model."""
    prior = ScalePrior(0.8, 5.0)
    logs = torch.linspace(-40, 6, 46 * 200 + 1, dtype=torch.float64)
    tails = torch.tensor([prior.tail(float(each)) for each in logs.exp()])
    middles = ((logs[1:] + logs[:-1]) / 2).exp()
    found = (prior.mean(middles) * (tails[:-1] - tails[1:])).sum()
    assert float(found) == pytest.approx(0.8 / 5.0, rel=DRIFT["rtol"])
    assert prior.tail(0.0) == pytest.approx(1.0, **{"rel": EXACT["rtol"]})


@priors
def test_hardly_rounded_the_tails_are_the_priors(shape, rate):
    prior, distances = ScalePrior(shape, rate), [0.01 / rate, 1 / rate, 5 / rate]
    # The spike of a small shape keeps mass however little is rounded off.
    rounding = 1e-300 if shape > 0.2 else 1e-12
    found = prior.rounded_tail(distances, rounding, 1.0)
    wanted = [prior.tail(each) for each in distances]
    if shape > 0.2:
        assert found == pytest.approx(wanted, rel=DRIFT["rtol"])
    else:
        assert all(mine > 5 * stated for mine, stated in zip(found, wanted, strict=True))
    assert prior.rounded_tail(distances, rounding, float("inf")) == [0, 0, 0]


def test_to_a_high_power_the_rounded_prior_is_normal():
    """Near zero log p(r) is −(1 − α) log r: a normal of variance rounding·γ²/(1 − α)."""
    prior, rounding, power = ScalePrior(), 1e-20, 1e4
    deviation = (rounding / power / (1 - prior.shape)) ** 0.5
    wanted = [1 - torch.erf(torch.tensor(z / 2**0.5)).item() for z in (0.5, 1.0, 2.0)]
    found = prior.rounded_tail([z * deviation for z in (0.5, 1, 2)], rounding, power)
    assert found == pytest.approx(wanted, rel=DRIFT["rtol"])


@pytest.mark.parametrize(("shape", "rate"), [(0, 1), (11, 1), (1, 0), (1, float("inf"))])
def test_numbers_out_of_range_are_named(shape, rate):
    with pytest.raises(ArgumentError, match=f"got {shape} and {rate}"):
        ScalePrior(shape, rate)
