"""Monte Carlo dropout of a fine-tuned text model, without and with a temperature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smidgen.prediction import dropout_outputs
from smidgen.workflows.method import score_methods
from smidgen_studies.data.text import TextData, draw
from smidgen_studies.engine.cell import Job
from smidgen_studies.engine.settings import Several
from smidgen_studies.methods.mixtures import mixture_methods
from smidgen_studies.methods.text_models import load_needed_model

Data = TextData


@dataclass(frozen=True)
class Settings:
    """How many passes."""

    samples: Several = 20
    reported_methods = ("dropout", "dropout-temperature")


def run(job: Job) -> Mapping[str, Any]:
    """Average passes with dropout left on."""
    settings: Settings = job.settings
    model, tokenizer = load_needed_model(job)
    data = draw(job)
    loaders = data.loaders(tokenizer)
    held, test = (
        dropout_outputs(model, loaders[name], samples=settings.samples, seed=seed)
        for name, seed in (("validation", 2 * job.seed), ("test", 2 * job.seed + 1))
    )
    methods = mixture_methods(
        "dropout",
        (held, data.labels("validation")),
        test,
        floats=0,
        settings={"samples": settings.samples},
    )
    return score_methods(methods, data.labels("test"))
