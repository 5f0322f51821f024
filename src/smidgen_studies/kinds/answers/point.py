"""A LoRA adapter that teaches a language model to choose: the point estimate, and a temperature.

Leaves the adapter for the cells that need it. `report = false` is for members of an ensemble,
which are nothing by themselves; `member` tells them apart. The epochs are all run: rows that
stopped the training could not calibrate it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smidgen import fit
from smidgen.prediction import point_outputs
from smidgen.runtime.record import BASELINES
from smidgen.workflows.method import predict_point, read_examples, score_methods
from smidgen_studies.data.answers import AnswerData, draw_answers
from smidgen_studies.engine.cell import Job
from smidgen_studies.engine.settings import Count, Natural, Positive
from smidgen_studies.methods.answer_models import Adapter, save_adapter, start_task
from smidgen_studies.methods.text_models import list_epochs

# Members of an ensemble differ in first weights and order; seeds of studies are small.
_APART = 1000

Data = AnswerData


@dataclass(frozen=True)
class Settings:
    """Which model, and how its adapter is trained."""

    base: str = "SmolLM2-135M"
    rank: Count = 8
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    epochs: Count = 2
    learning_rate: Positive = 5e-4
    member: Natural = 0
    report: bool = True

    @property
    def reported_methods(self) -> tuple[str, ...]:
        """Names of the methods that its record has."""
        return BASELINES if self.report else ()


def run(job: Job) -> Mapping[str, Any]:
    """Train the adapter, leave it and report the baselines."""
    settings: Settings = job.settings
    data, seed = draw_answers(job), job.seed + _APART * settings.member
    adapter = Adapter(settings.base, settings.rank, settings.targets, seed)
    task = start_task(adapter, job.data, job.device)
    loaders = data.loaders(task.tokenizer)
    tuned = fit.finetune(
        task.problem,
        data.shuffled(task.tokenizer, seed),
        task.adapters,
        seed=seed,
        checkpoint=job.work / "training",
        settings=fit.FinetuneSettings(
            head="none",
            epochs=settings.epochs,
            learning_rate=settings.learning_rate,
        ),
    )
    save_adapter(tuned, adapter, job.artifact)
    results = {"finetuning": list_epochs(tuned), "data": data.sizes}
    if not settings.report:
        return results
    problem = task.on(tuned.model)
    logits, _ = point_outputs(problem, loaders["validation"])
    scale = fit.temperature(logits, data.labels("validation"))
    test = read_examples(problem, loaders["test"])
    return {**score_methods(*predict_point(None, test, scale)), **results}
