"""A deep ensemble of adapters: the average of several, without and with a temperature.

It needs a cell for each member; with `needs = ["map", "member"]` the point estimate is one
of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from smidgen.errors import ArgumentError
from smidgen.prediction import point_outputs
from smidgen.workflows.method import score_methods
from smidgen_studies.data.answers import AnswerData, draw_answers
from smidgen_studies.engine.cell import Job
from smidgen_studies.methods.answer_models import load_task
from smidgen_studies.methods.mixtures import mixture_methods

Data = AnswerData


@dataclass(frozen=True)
class Settings:
    """None: the members are the cells it needs."""

    reported_methods = ("ensemble", "ensemble-temperature")


def run(job: Job) -> Mapping[str, Any]:
    """Average the members' probabilities."""
    if len(job.needs) < 2:
        raise ArgumentError(
            f"an ensemble must need 2 members or more, got {len(job.needs)}. Add to needs."
        )
    data = draw_answers(job)
    outputs: dict[str, list[Tensor]] = {"validation": [], "test": []}
    for member in job.needs:
        task = load_task(member.artifact, job.data, job.device)
        loaders = data.loaders(task.tokenizer)
        for name, members in outputs.items():
            members.append(point_outputs(task.problem, loaders[name])[0])
    methods = mixture_methods(
        "ensemble",
        (torch.stack(outputs["validation"]), data.labels("validation")),
        torch.stack(outputs["test"]),
        floats=(len(job.needs) - 1) * task.adapters.size,
        settings={"members": len(job.needs)},
    )
    return score_methods(methods, data.labels("test"))
