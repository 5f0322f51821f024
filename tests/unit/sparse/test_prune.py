"""Removal scores against numerical integration, and finite whatever is given."""

from __future__ import annotations

from math import exp, inf, log, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from smidgen.sparse.prune import PRUNING_SCORES, log_score
from tests.support.tolerances import SOLVER

CASES = [(0.0, 0.3), (0.02, 0.5), (-0.4, 0.3), (1.5, 0.2), (2.0, 1.0), (-0.7, 1.4)]
ANY = st.floats(allow_nan=True, allow_infinity=True)


def expectation(function, mean, scale):
    ends = (mean - 12 * scale, mean + 12 * scale)
    found, _ = quad(
        lambda t: function(t) * norm.pdf(t, mean, scale),
        *ends,
        points=[0.0],
        epsabs=0,
        epsrel=1e-11,
        limit=200,
    )
    return found


def integrated(by, mean, scale):
    """log of the score by its definition."""
    if by == "magnitude":
        return log(abs(mean))
    if by == "snr":
        return log(abs(mean) / scale)
    if by == "expected":
        return log(expectation(abs, mean, scale))
    first = expectation(lambda t: exp(abs(t)), mean, scale)
    if by == "exponential":
        return log(first)
    second = expectation(lambda t: exp(2 * abs(t)), mean, scale)
    return log(first / sqrt(second - first**2))


@pytest.mark.parametrize("by", PRUNING_SCORES)
@pytest.mark.parametrize(("mean", "scale"), CASES)
def test_scores_are_what_they_are_defined_as(by, mean, scale):
    if mean == 0 and by in ("magnitude", "snr"):
        pytest.skip("the logarithm of nothing")
    found = log_score(
        torch.tensor([mean]).double(), torch.tensor([scale]).double().log(), by
    )
    expected = torch.tensor([integrated(by, mean, scale)], dtype=torch.float64)
    torch.testing.assert_close(found, expected, **SOLVER)


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0, 3.0, 7.0])
def test_the_exponential_snr_of_small_scales_is_that_of_its_limit(ratio):
    """For lσ → 0 it tends to 1 / (lσ √Var|z + r|): exact where the formula cancels."""
    scale = 1e-8
    found = log_score(
        torch.tensor([ratio * scale]).double(),
        torch.tensor([log(scale)]).double(),
        "exponential-snr",
    )
    mean = expectation(abs, ratio, 1.0)
    variance = 1 + ratio**2 - mean**2
    expected = torch.tensor([-log(scale) - 0.5 * log(variance)], dtype=torch.float64)
    torch.testing.assert_close(found, expected, **SOLVER)


@pytest.mark.parametrize("ratio", [0.0, 0.5, 2.0, 5.0])
def test_series_and_formula_meet(ratio):
    scales = torch.tensor([0.99e-4, 1.01e-4], dtype=torch.float64)
    low, high = log_score(ratio * scales, scales.log(), "exponential-snr")
    assert abs(float(low - high) - log(1.01 / 0.99)) < 1e-4


@given(
    st.lists(st.tuples(ANY, ANY), min_size=1, max_size=20),
    st.sampled_from(list(PRUNING_SCORES)),
)
def test_every_score_is_finite(pairs, by):
    means, logs = torch.tensor(pairs, dtype=torch.float64).T
    assert torch.isfinite(log_score(means, logs, by)).all()
    assert torch.isfinite(log_score(means.float(), logs.float(), by)).all()
    assert torch.isfinite(log_score(means, None, by)).all()


# The exponential SNR does: |θ| varies less near zero, so it likes small means.
@pytest.mark.parametrize("by", [by for by in PRUNING_SCORES if by != "exponential-snr"])
@pytest.mark.parametrize("scale", [1e-6, 6e-4, 1.0, 40.0])
def test_a_larger_mean_never_scores_less(by, scale):
    means = torch.logspace(-12, 2, 400, dtype=torch.float64)
    found = log_score(means, torch.full_like(means, log(scale)), by)
    slack = SOLVER["rtol"] * found.abs().clamp_min(1).max()
    assert (found.diff() >= -slack).all()


def test_what_is_not_a_number_goes_first():
    means = torch.tensor([0.1, float("nan"), 2.0])
    found = log_score(means, torch.zeros(3), "magnitude")
    assert found.argmin() == 1
    assert found.min() > -inf
