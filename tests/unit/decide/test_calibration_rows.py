"""The conformal quantile: the right rank, the right coverage, and never an infinite one."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from smidgen.decide.calibration_rows import as_written, conformal_quantile
from smidgen.errors import TooFewRowsError
from tests.support.decisions import at_most, make_generator


def quantile(scores, coverage):
    return conformal_quantile(scores, as_written(coverage), "rows", f"coverage={coverage}")


@pytest.mark.parametrize(
    ("rows", "coverage", "rank"),
    [
        (9, 0.9, 9),
        (10, 0.9, 10),
        (19, 0.95, 19),
        (99, 0.07, 7),
        (99, 0.29, 29),
        (3, 0.5, 2),
    ],
)
def test_the_rank_is_that_of_the_decimal(rows, coverage, rank):
    """In binary, 100 · 0.29 is above 29 and 100 · 0.07 above 7, which would raise the rank."""
    scores = torch.arange(1, rows + 1).double()[torch.randperm(rows)]
    assert float(quantile(scores, coverage)) == rank
    assert as_written(0.29) == Fraction(29, 100)


def test_a_new_score_is_below_it_as_often_as_asked():
    """Of 1,000 draws of 30 + 1 scores, k / (n + 1) = 28/31 are at most the 28th of 30."""
    generator, draws = make_generator(), 4000
    scores = torch.randn(31, draws, generator=generator).double()
    covered = scores[30] <= quantile(scores[:30], 0.9)
    deviation = (28 / 31 * 3 / 31 / draws) ** 0.5
    assert abs(float(covered.double().mean()) - 28 / 31) < 3.5 * deviation


def test_ties_only_add_coverage():
    generator, draws = make_generator(), 2000
    scores = torch.randint(0, 4, (31, draws), generator=generator).double()
    missed = scores[30] > quantile(scores[:30], 0.9)
    assert float(missed.double().mean()) <= at_most(0.1, draws)


@pytest.mark.parametrize(
    ("coverage", "needed"), [(0.9, 9), (0.95, 19), (0.99, 99), (0.5, 1)]
)
def test_it_says_how_many_rows_would_do(coverage, needed):
    quantile(torch.zeros(needed), coverage)
    with pytest.raises(
        TooFewRowsError, match=f"rows must be {needed} or more for coverage"
    ):
        quantile(torch.zeros(needed - 1), coverage)
