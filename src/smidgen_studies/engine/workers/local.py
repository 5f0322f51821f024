"""Cells in processes of this machine, no more than its cores and its memory allow.

A worker does one cell after another. If it dies, its cell is tried once more, in case the
system had run out of memory, and is then noted as failed. All workers end with the program,
even if that was killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import torch

from smidgen.errors import ArgumentError
from smidgen.integrations.devices import find_device
from smidgen.runtime.memory import available_bytes
from smidgen.runtime.progress import SWITCH
from smidgen.runtime.system.process import count_cores
from smidgen_studies.engine.cell import Cell
from smidgen_studies.engine.ledger import Ledger
from smidgen_studies.engine.study import Resources
from smidgen_studies.engine.workers.base import Outcome, Workspace, do_cell

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_MOST_DEATHS = 2


@dataclass(eq=False)
class _Worker:
    process: SpawnProcess
    pipe: Connection
    cell: Cell | None = None


class LocalEngine:
    """Processes of this machine; by default as many as its cores and memory allow."""

    def __init__(
        self, workspace: Workspace, resources: Resources, workers: int | None = None
    ) -> None:
        find_device(resources.device, "--device")
        self.workspace = replace(workspace, device=resources.device)
        self.resources = resources
        self.most = workers or room_for(resources)
        if self.most < 1:
            raise ArgumentError(f"--workers must be 1 or more, got {workers}.")
        self.workers: list[_Worker] = []
        self.deaths: dict[str, int] = {}

    @property
    def busy(self) -> list[_Worker]:
        """The workers that have a cell."""
        return [worker for worker in self.workers if worker.cell is not None]

    def has_room(self) -> bool:
        """Say whether a worker is free, and memory for its cell."""
        busy = len(self.busy)
        if not busy or busy >= self.most:
            return not busy
        free = available_bytes()
        return free is None or free >= self.resources.memory

    def start(self, cell: Cell) -> None:
        """Give a cell to a worker that has none, or to a new one."""
        worker = next((worker for worker in self.workers if worker.cell is None), None)
        if worker is None:
            worker = self._start_worker()
            self.workers.append(worker)
        worker.cell = cell
        try:
            worker.pipe.send(cell)
        except BrokenPipeError:
            # It died while it had nothing to do; `wait` will notice and start another.
            return

    def wait(self) -> Sequence[Outcome]:
        """Wait for an outcome; a cell whose worker died is started again once."""
        outcomes: list[Outcome] = []
        while not outcomes:
            ready = wait([worker.pipe for worker in self.busy])
            for worker in [worker for worker in self.workers if worker.pipe in ready]:
                cell = worker.cell
                assert cell is not None
                try:
                    outcomes.append(worker.pipe.recv())
                    worker.cell = None
                except (EOFError, ConnectionResetError):
                    outcomes += self._replace_dead(worker, cell)
        return outcomes

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()
        self.workers = []

    def _replace_dead(self, worker: _Worker, cell: Cell) -> list[Outcome]:
        worker.process.join()
        worker.pipe.close()
        self.workers.remove(worker)
        deaths = self.deaths[cell.key] = self.deaths.get(cell.key, 0) + 1
        if deaths < _MOST_DEATHS:
            self.start(cell)
            return []
        reason = (
            f"its process was killed {deaths} times (exit code {worker.process.exitcode}). "
            "If the system ran out of memory, pass --workers 1."
        )
        Ledger(self.workspace.folder).note_failure(cell, reason)
        return [Outcome(cell.key, reason)]

    def _start_worker(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        threads = self.resources.threads
        process = context.Process(target=_serve, args=(theirs, self.workspace, threads))
        with _environment(threads):
            process.start()
        theirs.close()
        return _Worker(process, ours)


def room_for(resources: Resources) -> int:
    """Say how many workers this machine's cores and free memory allow; at least one."""
    # How much of a GPU's memory a cell takes is not known: one worker has it alone.
    if find_device(resources.device).type != "cpu":
        return 1
    cores = count_cores()
    free = available_bytes()
    by_memory = cores if free is None else int(free // resources.memory)
    return max(1, min(cores // resources.threads, by_memory))


@contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Set what a process must find when it starts, before it imports anything."""
    variables = {**dict.fromkeys(_THREADS, str(threads)), SWITCH: "0"}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(pipe: Connection, workspace: Workspace, threads: int) -> None:
    """Do cells until the pipe is closed: all that a worker does."""
    # Ctrl-C is meant for the program, which then ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    while True:
        try:
            cell = pipe.recv()
        except EOFError:
            return
        pipe.send(do_cell(cell, workspace))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
