"""The kind of cell of `tests.support.study_kinds`, in a worker that may be killed."""

from __future__ import annotations

from tests.faults.watching import arm_worker
from tests.support import study_kinds
from tests.support.study_kinds import Data, Settings

__all__ = ["Data", "Settings", "run"]


def run(job):
    arm_worker()
    return study_kinds.run(job)
