"""Two processes with shards of the weights, or of the rows: the posterior of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from tests.support.tolerances import EXACT

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each process saved: tensors by name, and what was refused."""
    folder = tmp_path_factory.mktemp("processes")
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    words = [sys.executable, "-m", "tests.integration.several_processes"]
    runs = [
        subprocess.Popen(
            [*words, str(rank), str(folder)],
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said = [run.communicate(timeout=120)[1] for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert [run.returncode for run in runs] == [0, 0], said[0][-3000:] + said[1][-3000:]
    results = []
    for rank in (0, 1):
        with safe_open(folder / f"{rank}.safetensors", "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            results.append((tensors, file.metadata()))
    return results


def pairs(tensors, start):
    names = [
        n.removesuffix(".got")
        for n in tensors
        if n.startswith(start) and n.endswith(".got")
    ]
    assert names
    return {name: (tensors[f"{name}.got"], tensors[f"{name}.expected"]) for name in names}


@pytest.mark.parametrize("subset", ["last", "kfac", "lora"])
def test_sharded_weights_have_the_posterior_of_whole_ones(found, subset):
    for tensors, _ in found:
        for name, (got, expected) in pairs(tensors, f"weights.{subset}.").items():
            torch.testing.assert_close(got, expected, **EXACT, msg=name)


def test_a_row_that_a_sampler_repeats_counts_once(found):
    for tensors, _ in found:
        for got, expected in pairs(tensors, "rows.").values():
            torch.testing.assert_close(got, expected, **EXACT)


def test_processes_that_would_come_to_different_results_are_refused(found):
    for _, refused in found:
        for name in ("fit", "many"):
            assert refused[name].startswith(
                "reduce must be given where torch.distributed has 2 processes, got None: each "
                "would fit its own rows. Pass smidgen.fit.laplace(..., reduce=all_reduce)"
            )
        for name in ("calibrate", "select"):
            assert refused[name].startswith(
                "batches must be all rows in every process, got the part that "
                "DistributedSampler gives to one"
            )
        assert "got tensor parallelism" in refused["parallel"]


def test_metrics_of_several_processes_are_those_of_all_rows(tmp_path):
    pytest.importorskip("torchmetrics")
    shared_metrics = import_module("tests.integration.shared_metrics")
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    words = [sys.executable, "-m", "tests.integration.shared_metrics"]
    runs = [
        subprocess.Popen(
            [*words, str(rank), str(tmp_path)],
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said = [run.communicate(timeout=240) for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert [run.returncode for run in runs] == [0, 0], said[0][1][-3000:]
    first, second = (json.loads(printed) for printed, _ in said)
    assert first == second
    predictive, targets = shared_metrics.make_rows()
    for name, metric in shared_metrics.make_metrics().items():
        metric.update(predictive, targets)
        assert first[name] == pytest.approx(float(metric.compute()), rel=1e-13)
