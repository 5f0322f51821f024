"""A deep ensemble of adapters; otherwise as the kind `ensemble`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smidgen_studies.data.answers import AnswerData, draw_answers
from smidgen_studies.engine.cell import Job
from smidgen_studies.kinds.ensemble import Settings
from smidgen_studies.methods.answer_models import load_task
from smidgen_studies.methods.mixtures import Member, score_ensemble

__all__ = ["Data", "Settings", "run"]

Data = AnswerData


def run(job: Job) -> Mapping[str, Any]:
    """Average the members' probabilities."""

    def load(folder: Path) -> Member:
        task = load_task(folder, job.data, job.device)
        return task.problem, task.tokenizer, task.adapters.size

    return score_ensemble(job, draw_answers(job), load)
