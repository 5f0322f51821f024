"""Two classes by quadrature: against a fine sum, in both tails, at every variance."""

from __future__ import annotations

from math import exp, inf, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm

from smidgen.outputs.links import GaussianLogit, both_outcomes, two_class_link
from tests.support.oracles import sigmoid_by_sum
from tests.support.tolerances import EXACT, INTEGRATED

MEANS = (0.0, 1e-3, 0.1, 0.5, 1, 2, 3, 5, 8, 12, 17, 23, 30, 36, 40)
VARIANCES = [10 ** (k / 3) for k in range(-18, 13)]  # 1e-6 to 1e4


def double(value):
    return torch.tensor(value, dtype=torch.float64)


def test_the_fine_sum_is_the_integral():
    for mean, variance in ((0.3, 0.5), (-2.0, 4.0), (-8.0, 4.0), (5.0, 90.0)):
        spread = variance**0.5

        def density(f, mean=mean, spread=spread):
            return expit(f) * norm.pdf(f, mean, spread)

        ends = (mean - 12 * spread, mean + 12 * spread)
        exact, _ = quad(density, *ends, epsabs=0, epsrel=1e-11, limit=400)
        assert exp(sigmoid_by_sum(mean, variance)[0]) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize("variance", VARIANCES)
def test_both_log_probabilities_are_those_of_a_fine_sum(variance):
    means = double(MEANS)
    logit = GaussianLogit.of(torch.full_like(means, variance))
    for sign in (-1, 1):
        expected = double([sigmoid_by_sum(sign * m, variance)[0] for m in MEANS])
        if sign > 0:
            # Of the larger, the sum's rounding leaves less than one minus the smaller.
            smaller = double([sigmoid_by_sum(-m, variance)[0] for m in MEANS])
            torch.testing.assert_close(expected, (-smaller.exp()).log1p(), **EXACT)
            expected = (-smaller.exp()).log1p()
        torch.testing.assert_close(logit.log_prob(sign * means), expected, **INTEGRATED)


def test_the_losing_class_is_not_overstated():
    """Mean 8 and variance 4: the probit says 0.0068."""
    found = GaussianLogit.of(double([4.0])).log_prob(double([-8.0])).exp()
    assert float(found) == pytest.approx(0.0023, abs=5e-5)
    damped = two_class_link("probit", double([4.0]))(double([-8.0])).exp()
    assert float(damped) == pytest.approx(0.0068, abs=5e-5)


@pytest.mark.parametrize("variance", VARIANCES)
def test_the_expected_entropy_is_that_of_a_fine_sum(variance):
    means = double(MEANS)
    log_prob, within = zip(*(sigmoid_by_sum(-m, variance) for m in MEANS), strict=True)
    both = torch.stack([double(log_prob), (-double(log_prob).exp()).log1p()], -1)
    total = torch.special.entr(both.exp()).sum(-1)
    expected = (total - double(within)).clamp_min(0)
    logit = GaussianLogit.of(torch.full_like(means, variance))
    for sign in (-1, 1):
        found = logit.information(sign * means)
        torch.testing.assert_close(found, expected, rtol=0, atol=INTEGRATED["rtol"])


@given(st.floats(-1e4, 1e4), st.floats(0, 1e6) | st.floats(0, 1e-3), st.floats(0.01, 100.0))
def test_two_probabilities_are_finite_and_sum_to_one(mean, variance, temperature):
    logit = GaussianLogit.of(double([variance]))
    both = both_outcomes(logit.log_prob, double([mean / temperature]))
    assert torch.equal(logit.log_outcomes(double([mean / temperature])), both)
    assert torch.isfinite(both).all()
    assert (both <= 0).all()
    assert float(both.exp().sum()) == pytest.approx(1, abs=1e-15)
    # The likelier outcome is that of the mean's sign, and one mirrors the other.
    assert bool((both[0, 1] - both[0, 0]) * mean >= 0)
    mirrored = both_outcomes(logit.log_prob, double([-mean / temperature]))
    assert torch.equal(mirrored.flip(-1), both)
    entropy = torch.special.entr(both.exp()).sum()
    information = float(logit.information(double([mean])))
    assert 0 <= information <= log(2)
    assert float(entropy) >= 0


@given(st.floats(0, 40), st.floats(0, 100), st.floats(0, 40), st.floats(0, 100))
def test_a_larger_mean_is_likelier_and_variance_makes_doubt(mean, variance, more, wider):
    def smaller(size, spread):
        return float(GaussianLogit.of(double([spread])).log_prob(double([-size])))

    slack = 1e-11 * (1 + mean + more)
    assert smaller(mean + more, variance) <= smaller(mean, variance) + slack
    assert smaller(mean, variance + wider) >= smaller(mean, variance) - slack


@pytest.mark.parametrize("variance", [0.0, 1.0, 1e4, 1e6])
def test_logits_of_ten_thousand_keep_their_size(variance):
    found = float(GaussianLogit.of(double([variance])).log_prob(double([-1e4])))
    # Chernoff: E σ(f) ≤ E e^{tf} at every t in [0, 1].
    rates = [k / 100 for k in range(1, 101)]
    bound = min(-1e4 * t + variance * t * t / 2 for t in rates)
    assert -inf < found <= bound
    assert found >= bound - 12


def test_many_variances_and_means_are_each_on_their_own():
    variances = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)).double() * 9
    means = torch.linspace(-30, 30, 12).double().reshape(3, 4)
    together = GaussianLogit.of(variances).log_prob(means)
    for row in range(3):
        for column in range(4):
            alone = GaussianLogit.of(variances[row, column][None])
            expected = alone.log_prob(means[row, column][None])[0]
            torch.testing.assert_close(together[row, column], expected, **EXACT)
