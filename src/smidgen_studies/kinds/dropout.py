"""Monte Carlo dropout of a fine-tuned text model, without and with a temperature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smidgen.prediction import dropout_outputs, point_outputs
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
    loaders = draw(job).loaders(tokenizer)
    outputs, labels = {}, {}
    for place, name in enumerate(("validation", "test")):
        _, labels[name] = point_outputs(model, loaders[name])
        outputs[name] = dropout_outputs(
            model, loaders[name], samples=settings.samples, seed=2 * job.seed + place
        )
    held, targets = labels["validation"], labels["test"]
    assert held is not None
    assert targets is not None
    methods = mixture_methods(
        "dropout",
        (outputs["validation"], held),
        outputs["test"],
        floats=0,
        settings={"samples": settings.samples},
    )
    return score_methods(methods, targets)
