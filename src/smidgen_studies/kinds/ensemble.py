"""A deep ensemble: the average of several fine-tunes, without and with a temperature.

It needs a cell for each member; with `needs = ["map", "member"]` the point estimate is one
of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smidgen.integrations.huggingface import load_classifier
from smidgen_studies.data.text import TextData, draw
from smidgen_studies.engine.cell import Job
from smidgen_studies.methods.mixtures import Member, score_ensemble

Data = TextData


@dataclass(frozen=True)
class Settings:
    """None: the members are the cells it needs."""

    reported_methods = ("ensemble", "ensemble-temperature")


def run(job: Job) -> Mapping[str, Any]:
    """Average the members' probabilities."""

    def load(folder: Path) -> Member:
        model, tokenizer = load_classifier(folder, device=job.device)
        return model, tokenizer, sum(p.numel() for p in model.parameters())

    return score_ensemble(job, draw(job), load)
