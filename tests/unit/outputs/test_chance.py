from __future__ import annotations

from itertools import product

import pytest
import torch
from scipy.stats import binom, binomtest

from smidgen.outputs.chance import (
    binomial_interval,
    binomial_upper_bound,
    expected_gap,
)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_the_gap_is_that_of_all_outcomes(count):
    chances = torch.rand(count, generator=torch.Generator().manual_seed(count)).double()
    expected = 0.0
    for answers in product((0, 1), repeat=count):
        right = torch.tensor(answers)
        weight = torch.where(right == 1, chances, 1 - chances).prod()
        expected += float(weight * (right.sum() - chances.sum()).abs())
    assert expected_gap(chances) == pytest.approx(expected, rel=1e-12)


def test_equal_chances_have_the_binomial_gap():
    count, chance = 1000, 0.93
    law = binom(count, chance)
    expected = law.expect(lambda right: abs(right - count * chance))
    chances = torch.full((count,), chance, dtype=torch.float64)
    assert expected_gap(chances) == pytest.approx(expected, rel=1e-9)


def test_what_is_certain_has_no_gap():
    assert expected_gap(torch.tensor([1.0, 0.0, 1.0])) == pytest.approx(0, abs=1e-12)
    # In fp32 a probability may exceed one by rounding.
    assert expected_gap(torch.tensor([1.0 + 1e-7])) == 0
    assert expected_gap(torch.empty(0)) == 0


@pytest.mark.parametrize(("count", "rows"), [(0, 5), (3, 40), (39, 40), (40, 40)])
def test_the_upper_bound_is_where_so_few_become_unlikely(count, rows):
    bound = binomial_upper_bound(count, rows, 0.9)
    if count == rows:
        assert bound == 1
    else:
        assert binom.cdf(count, rows, bound) == pytest.approx(0.1, rel=1e-9)


def test_the_interval_is_that_of_scipy():
    for count in (0, 7, 30):
        expected = binomtest(count, 30).proportion_ci(0.95, method="exact")
        assert binomial_interval(count, 30) == pytest.approx((expected.low, expected.high))
