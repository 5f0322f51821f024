"""`accelerate launch` with two processes, uneven shards: the posterior of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from math import ceil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.integration.sharded_fit import BATCH, PERCENTS, ROWS, STRUCTURES
from tests.support.tolerances import EXACT

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_processes_find_the_posterior_of_one(tmp_path):
    # --cpu would ask for mpirun; the program itself says that it stays on the CPU.
    words = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    words += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    run = subprocess.run(
        [
            *(sys.executable, "-m", "accelerate.commands.launch", *words),
            *("--main_process_port", "0", "-m", "tests.integration.sharded_fit"),
            str(tmp_path),
        ],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found = [load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1)]
    for name in ("classes", "numbers"):
        for part, count in (("rows", ROWS), ("batches", ceil(ROWS / BATCH))):
            shares = [int(each[f"{name}.{part}"]) for each in found]
            assert sum(shares) == count
            assert shares[0] != shares[1]
    compared = [name.removesuffix("both") for name in found[0] if name.endswith(".both")]
    for what in (*STRUCTURES, *(f"many{percent}" for percent in PERCENTS)):
        for part in ("classes.{}.probabilities.", "classes.{}.covariance."):
            assert part.format(what) in compared
        assert f"numbers.{what}.variance." in compared
    for name in compared:
        both, alone = found[0][f"{name}both"], found[0][f"{name}alone"]
        torch.testing.assert_close(both, alone, **EXACT)
        # Both processes have the very same posterior.
        torch.testing.assert_close(found[1][f"{name}both"], both, rtol=0, atol=0)
        # A part of the rows comes to something else: the comparison can tell.
        for each in found:
            assert not torch.allclose(each[f"{name}shard"], alone, **EXACT), name
