"""Cost follows the subset: peak memory near a plain pass, stored floats as promised."""

from __future__ import annotations

import subprocess
import sys
from math import ceil
from pathlib import Path

import pytest

import smidgen
from smidgen.weights.affine import coverage
from tests.support.cases import Case, OneBlock, padded_tokens
from tests.support.tolerances import PEAK_MEMORY_RATIO

ROOT = Path(__file__).parents[2]


def peak(what: str, percent: float = 10) -> int:
    command = [sys.executable, "-m", "tests.integration.peak_memory", what, str(percent)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return int(run.stdout)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_at_ten_percent_is_near_a_plain_pass():
    # malloc gives activations back sooner or later, by tens of megabytes: the least of three
    # runs is what the work needs.
    plain, fit, predict = (
        min(peak(what) for _ in range(3)) for what in ("plain", "fit", "predict")
    )
    assert fit <= PEAK_MEMORY_RATIO * plain
    assert predict <= PEAK_MEMORY_RATIO * plain


def test_stored_floats_are_what_the_paper_promises():
    """Σ over layers of (p·n)² + (p·m + 1)², the one for the bias."""
    model, batch = Case("one-block", OneBlock, 2, padded_tokens).make()
    for percent in (10, 50, 100):
        subset = smidgen.select.sparse_kfac(model, percent=percent)
        posterior = smidgen.fit.laplace(model, [batch], subset)
        expected = 0
        for each in coverage(model).layers:
            n = max(1, ceil(percent * each.outputs / 100))
            m = max(1, ceil(percent * each.inputs / 100)) + (each.bias is not None)
            expected += n * n + m * m
        assert posterior.floats == expected
