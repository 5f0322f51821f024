"""A fine-tune of a text model: the point estimate, and with a temperature.

Leaves the model for the cells that need it. `report = false` is for members of an
ensemble, which are nothing by themselves; `member` tells them apart. With `early_stopping =
false` all epochs run, and the rows that calibrate have chosen nothing before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smidgen import fit
from smidgen.fit.epochs import Criterion
from smidgen.integrations.huggingface import load_classifier, name_classes, save_model
from smidgen.outputs.problem import Problem
from smidgen.prediction import point_outputs
from smidgen.runtime.record import BASELINES
from smidgen.workflows.method import predict_point, read_examples, score_methods
from smidgen_studies.data.text import TextData, draw
from smidgen_studies.engine.cell import Job
from smidgen_studies.engine.settings import Count, Natural, Positive, Unsigned
from smidgen_studies.methods.text_models import find_base, list_epochs

# Members of an ensemble differ in head, order and dropout; seeds of studies are small.
_APART = 1000

Data = TextData


@dataclass(frozen=True)
class Settings:
    """Which model, and how it is trained."""

    base: str = "all-MiniLM-L6-v2"
    epochs: Count = 4
    patience: Count = 4
    learning_rate: Positive = 1e-4
    weight_decay: Unsigned = 0.01
    stop_on: Criterion = "accuracy"
    early_stopping: bool = True
    member: Natural = 0
    report: bool = True

    @property
    def reported_methods(self) -> tuple[str, ...]:
        """Names of the methods that its record has."""
        return BASELINES if self.report else ()


def run(job: Job) -> Mapping[str, Any]:
    """Fine-tune, save the model and report the baselines."""
    settings: Settings = job.settings
    data = draw(job)
    seed = job.seed + _APART * settings.member
    base, tokenizer = load_classifier(
        find_base(settings.base), labels=data.classes, seed=seed, device=job.device
    )
    name_classes(base, data.train.label_names)
    loaders = data.loaders(tokenizer)
    tuned = fit.finetune(
        Problem(base, forward=data.forward),
        data.shuffled(tokenizer, seed),
        validation=loaders["validation"] if settings.early_stopping else None,
        seed=seed,
        settings=fit.FinetuneSettings(
            epochs=settings.epochs,
            patience=settings.patience,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            stop_on=settings.stop_on,
        ),
    )
    save_model(tuned.model, tokenizer, job.artifact)
    results = {"finetuning": list_epochs(tuned), "data": data.sizes}
    if not settings.report:
        return results
    problem = Problem(tuned.model)
    logits, _ = point_outputs(problem, loaders["validation"])
    scale = fit.temperature(logits, data.labels("validation"))
    test = read_examples(problem, loaders["test"])
    return {**score_methods(*predict_point(None, test, scale)), **results}
