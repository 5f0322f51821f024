"""Cells on a Ray cluster: one that is there already, by its address, or a local one.

Every worker must see the folders of the data and of the records under the same path, as on
a shared file system: cells write their records themselves, so what was done stays done
whatever becomes of the cluster. A worker that dies has its cell done by another.
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
from smidgen_studies.engine.workers.base import Outcome, Place, do_cell
from smidgen_studies.engine.workers.local import room_for

_TRIES_AFTER_DEATH = 3


class RayEngine:
    """Tasks of a Ray cluster.

    Args:
        place: Where data are and records go; the same for every worker.
        resources: What a cell needs.
        workers: How many cells at once; what the cluster's cores hold if left out.
        address: The cluster; one is started on this machine if left out.
    """

    def __init__(
        self,
        place: Place,
        resources: Resources,
        workers: int | None = None,
        *,
        address: str | None = None,
    ) -> None:
        self.place = replace(place, device=resources.device)
        self.own = not ray.is_initialized()
        if self.own:
            _join(resources, workers, address)
        self.running: dict[Any, Cell] = {}
        there = ray.cluster_resources()
        cores, gpus = int(there.get("CPU", 1)), int(there.get("GPU", 0))
        try:
            own_gpu = gpus_of_a_cell(resources.device, gpus)
        except ArgumentError:
            self.close()
            raise
        self.most = workers or max(1, cores // resources.threads)
        if own_gpu:
            self.most = min(self.most, gpus)
        self.task = ray.remote(
            num_cpus=resources.threads,
            num_gpus=own_gpu,
            # A worker that dies is the cluster's affair; an error of ours is an outcome.
            max_retries=_TRIES_AFTER_DEATH,
            max_calls=0,
        )(_done)
        self.threads = resources.threads

    def has_room(self) -> bool:
        """Say whether the cluster would start another cell at once."""
        return len(self.running) < self.most

    def start(self, cell: Cell) -> None:
        """Send a cell to the cluster."""
        self.running[self.task.remote(cell, self.place, self.threads)] = cell

    def wait(self) -> Sequence[Outcome]:
        """Wait until a cell has ended."""
        ended, _ = ray.wait(list(self.running), num_returns=1)
        return [self._outcome(each, self.running.pop(each)) for each in ended]

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        for each in self.running:
            ray.cancel(each, force=True)
        self.running = {}
        if self.own:
            ray.shutdown()

    def _outcome(self, task: Any, cell: Cell) -> Outcome:
        try:
            found: Outcome = ray.get(task)
            return found
        except RayError as error:
            said = f"its workers ended without a word ({type(error).__name__})."
            Ledger(self.place.folder).note_failure(cell, said)
            return Outcome(cell.key, said)


def gpus_of_a_cell(device: str, there: int) -> int:
    """Tell how many of a cluster's GPUs a cell is to have for itself.

    Args:
        device: The device of a study's resources.
        there: How many GPUs the cluster has.

    Returns:
        One or none; a task that asks Ray for none sees none.

    Raises:
        ArgumentError: If it must be one that is not there, or one by its number.
    """
    if device == AUTO:
        return min(1, there)
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return 0
    if index:
        raise ArgumentError(
            f"--device must be auto, cuda or cpu with --engine ray, got {device!r}. Ray "
            "says which GPU a cell has: take cuda."
        )
    if not there:
        raise ArgumentError(
            f"--device must be a device of the Ray cluster, got {device!r}, and it has no "
            "GPU. Leave it out, or take cpu."
        )
    return 1


def _join(resources: Resources, workers: int | None, address: str | None) -> None:
    threads = str(resources.threads)
    environment = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        SWITCH: "0",
        # Kinds of the user's own must be found where the program finds them.
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    common: dict[str, Any] = {
        "runtime_env": {"env_vars": environment},
        "log_to_driver": False,
        "configure_logging": False,
    }
    if address is None:
        # GPUs are counted by Ray itself.
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


def _done(cell: Cell, place: Place, threads: int) -> Outcome:
    torch.set_num_threads(threads)
    return do_cell(cell, place)
