"""A kind of cell for tests: notes each try, waits, leaves a folder, fails when told."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Data:
    name: str
    size: int = 0
    train: str = ""


@dataclass(frozen=True)
class Settings:
    diary: str
    seconds: float = 0.0
    leaves: bool = False
    fails_without: str = ""
    dies_without: str = ""


def run(job):
    told = job.settings
    # The folder for notes has the name of the cell's record.
    note(told.diary, f"start {job.work.name}")
    time.sleep(told.seconds)
    if told.fails_without and not Path(told.fails_without).exists():
        raise ValueError("not yet")
    if told.leaves:
        job.artifact.mkdir()
        (job.artifact / "left.txt").write_text(f"{job.data.name} {job.seed}")
    if told.dies_without and not Path(told.dies_without).exists():
        Path(told.dies_without).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    found = [(each.artifact / "left.txt").read_text() for each in job.needs]
    note(told.diary, f"end {job.work.name}")
    value = job.seed + len(found)
    score = {"value": value, "low": value - 1, "high": value + 1}
    methods = [{"name": "map", "label": "MAP", "scores": {"nll": score}}]
    return {"found": found, "methods": methods}


def note(diary, text):
    with open(diary, "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {text}\n")
