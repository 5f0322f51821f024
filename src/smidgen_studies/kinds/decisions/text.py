"""Decisions of a text classifier: each method on test texts and on texts of other kinds.

It needs cells of kind `finetune`: the first is the point estimate, all together the ensemble.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smidgen.errors import ArgumentError
from smidgen.integrations.huggingface import load_classifier
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.problem import Problem
from smidgen_studies.data.text import TextData, draw, read_outside
from smidgen_studies.engine.cell import Job
from smidgen_studies.engine.settings import Percent
from smidgen_studies.methods.decisions.methods import DECIDING, DecisionData, decide_all

Data = TextData


@dataclass(frozen=True)
class Settings:
    """How much of every layer Sparse-KFAC takes."""

    percent: Percent = 10.0
    reported_methods = DECIDING


def run(job: Job) -> Mapping[str, Any]:
    """Predict with every method and score what may be decided."""
    if len(job.needs) < 2:
        raise ArgumentError(
            f"an ensemble must need 2 members or more, got {len(job.needs)}. Add to needs."
        )
    split = draw(job)
    loaded = [load_classifier(m.artifact, device=job.device) for m in job.needs]
    tokenizer = loaded[0][1]
    loaders = split.loaders(tokenizer)
    outside = {
        name: split.batch(table, tokenizer) for name, table in read_outside(job).items()
    }
    data = DecisionData(loaders["train"], loaders["validation"], loaders["test"], outside)
    members = [Problem(model, Categorical(split.classes)) for model, _ in loaded]
    results = decide_all(members, data, job.settings.percent)
    return {**results, "data": split.sizes}
