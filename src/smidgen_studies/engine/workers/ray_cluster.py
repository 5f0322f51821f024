"""Cells on a Ray cluster: a running one by its address, or one started on this machine.

Every worker must see the folders of the data and of the records under the same path, as on
a shared file system: cells write their own records, so what is done stays done whatever
happens to the cluster. If a worker dies, another does its cell.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray
import torch
from ray.exceptions import RayError

from smidgen.errors import ArgumentError
from smidgen.integrations.devices import AUTO
from smidgen.runtime.progress import SWITCH
from smidgen_studies.engine.cell import Cell
from smidgen_studies.engine.ledger import Ledger
from smidgen_studies.engine.study import Resources
from smidgen_studies.engine.workers.base import Outcome, Workspace, do_cell
from smidgen_studies.engine.workers.local import room_for

_TRIES_AFTER_DEATH = 3


class RayEngine:
    """Tasks of a Ray cluster; without an address one is started on this machine."""

    def __init__(
        self,
        workspace: Workspace,
        resources: Resources,
        workers: int | None = None,
        *,
        address: str | None = None,
    ) -> None:
        self.workspace = replace(workspace, device=resources.device)
        self.started = not ray.is_initialized()
        if self.started:
            _join(resources, workers, address)
        self.running: dict[Any, Cell] = {}
        available = ray.cluster_resources()
        cores, gpus = int(available.get("CPU", 1)), int(available.get("GPU", 0))
        try:
            gpus_each = gpus_per_cell(resources.device, gpus)
        except ArgumentError:
            self.close()
            raise
        self.most = workers or max(1, cores // resources.threads)
        if gpus_each:
            self.most = min(self.most, gpus)
        self.task = ray.remote(
            num_cpus=resources.threads,
            num_gpus=gpus_each,
            # Ray retries after a worker's death; an error in a cell is an outcome.
            max_retries=_TRIES_AFTER_DEATH,
            max_calls=0,
        )(_do_cell)
        self.threads = resources.threads

    def has_room(self) -> bool:
        """Say whether the cluster would start another cell at once."""
        return len(self.running) < self.most

    def start(self, cell: Cell) -> None:
        """Send a cell to the cluster."""
        self.running[self.task.remote(cell, self.workspace, self.threads)] = cell

    def wait(self) -> Sequence[Outcome]:
        """Wait until a cell has ended."""
        ended, _ = ray.wait(list(self.running), num_returns=1)
        return [self._outcome(task, self.running.pop(task)) for task in ended]

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        for task in self.running:
            ray.cancel(task, force=True)
        self.running = {}
        if self.started:
            ray.shutdown()

    def _outcome(self, task: Any, cell: Cell) -> Outcome:
        try:
            outcome: Outcome = ray.get(task)
            return outcome
        except RayError as error:
            reason = f"its workers died ({type(error).__name__})."
            Ledger(self.workspace.folder).note_failure(cell, reason)
            return Outcome(cell.key, reason)


def gpus_per_cell(device: str, available: int) -> int:
    """Return 1 if each cell has a GPU for itself, else 0: then it sees none."""
    if device == AUTO:
        return min(1, available)
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return 0
    if index:
        raise ArgumentError(
            f"--device must be auto, cuda or cpu with --engine ray, got {device!r}. Ray "
            "chooses the GPU of a cell: pass cuda."
        )
    if not available:
        raise ArgumentError(
            f"--device must be a device of the Ray cluster, got {device!r}, and it has no "
            "GPU. Leave it out, or pass cpu."
        )
    return 1


def _join(resources: Resources, workers: int | None, address: str | None) -> None:
    threads = str(resources.threads)
    environment = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        SWITCH: "0",
        # Workers must find a user's own kinds where the program finds them.
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    common: dict[str, Any] = {
        "runtime_env": {"env_vars": environment},
        "log_to_driver": False,
        "configure_logging": False,
    }
    if address is None:
        # Ray counts GPUs itself.
        cores = (workers or room_for(replace(resources, device="cpu"))) * resources.threads
        # A busy machine takes longer to start Ray's own processes than Ray waits for them.
        os.environ.setdefault("RAY_agent_register_timeout_ms", "300000")
        ray.init(num_cpus=cores, include_dashboard=False, **common)
        return
    try:
        ray.init(address=address, **common)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ArgumentError(
            f"--address must be of a Ray cluster that runs, got {address!r} ({error}). "
            "Start one with 'ray start --head', or leave it out."
        ) from error


def _do_cell(cell: Cell, workspace: Workspace, threads: int) -> Outcome:
    torch.set_num_threads(threads)
    return do_cell(cell, workspace)
