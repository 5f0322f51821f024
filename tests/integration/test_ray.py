"""A study on a local Ray cluster: the same records, though a worker is killed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest

from smidgen_studies.engine.ledger import Ledger, read_state
from smidgen_studies.engine.run import check_study, run_cells
from smidgen_studies.engine.study import Resources, read_study
from smidgen_studies.engine.workers.base import Workspace
from smidgen_studies.engine.workers.local import LocalEngine
from tests.integration.test_cli import run
from tests.unit.studies.engine.test_run import written

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    # Ray leaves sockets and processes to the interpreter's end.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def plain(folder):
    """Records without what differs from run to run: dates."""
    found = {}
    for path in (folder / "records").glob("*.json"):
        record = json.loads(path.read_text())
        del record["created"]
        found[path.name] = record
    return found


def test_ray_gives_the_records_of_this_machine_though_a_worker_is_killed(tmp_path):
    from smidgen_studies.engine.workers.ray_cluster import RayEngine  # noqa: PLC0415

    path = written(tmp_path, seconds=1.0)
    study = read_study(str(path))
    diary, killed = tmp_path / "diary", []

    def kill_one():
        while not killed:
            time.sleep(0.02)
            lines = diary.read_text().splitlines() if diary.exists() else []
            for line in lines:
                pid = int(line.split()[0])
                # Two workers are at it, and this one has not ended its cell.
                if len({each.split()[0] for each in lines}) > 1 and not killed:
                    ended = [e for e in lines if e.startswith(f"{pid} end")]
                    began = [e for e in lines if e.startswith(f"{pid} start")]
                    if len(began) > len(ended):
                        os.kill(pid, signal.SIGKILL)
                        killed.append(pid)

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    ledger = Ledger(tmp_path / "ray")
    engine = RayEngine(Workspace(ledger.folder), Resources(), 2)
    finished = run_cells(check_study(study, ledger, None), ledger, engine)
    killer.join(timeout=10)
    assert killed
    assert len(finished.done) == 12
    assert not finished.failed
    assert len(read_state(study.cells, ledger).done) == 12
    here = Ledger(tmp_path / "here")
    engine = LocalEngine(Workspace(here.folder), Resources(), 2)
    run_cells(check_study(study, here, None), here, engine)
    assert plain(ledger.folder) == plain(here.folder)


def test_a_cluster_that_runs_is_joined_by_its_address_and_left_running(tmp_path):
    import ray  # noqa: PLC0415
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    path = written(tmp_path)
    words = ["study", "run", str(path), "--out", str(tmp_path / "out"), "--engine", "ray"]
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "include_dashboard": False},
    )
    try:
        assert run(*words, "--address", cluster.address) == 0
        assert not ray.is_initialized()
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        assert ray.cluster_resources()["CPU"] == 2
    finally:
        ray.shutdown()
        cluster.shutdown()
    ledger = Ledger(tmp_path / "out")
    assert len(read_state(read_study(str(path)).cells, ledger).done) == 12
