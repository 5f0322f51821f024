"""Decisions of an image classifier: each method on test images and on images of other kinds.

The cell trains its networks itself: the first is the point estimate, all together the ensemble.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.problem import Problem
from smidgen_studies.data.images import ImageData, read_images, scoring_batches
from smidgen_studies.engine.cell import Job
from smidgen_studies.engine.settings import Count, Percent, Positive, Several
from smidgen_studies.methods.decisions.methods import DECIDING, DecisionData, decide_all
from smidgen_studies.methods.decisions.networks import train_network

Data = ImageData
ON_PROCESSOR = True
# Members of an ensemble differ in first weights and order; seeds of studies are small.
_APART = 1000


@dataclass(frozen=True)
class Settings:
    """Which networks, how they are trained, and how much of a layer Sparse-KFAC takes."""

    members: Several = 5
    width: Count = 8
    steps: Count = 700
    learning_rate: Positive = 3e-3
    percent: Percent = 10.0
    reported_methods = DECIDING


def run(job: Job) -> Mapping[str, Any]:
    """Train the networks, predict with every method and score what may be decided."""
    settings: Settings = job.settings
    images = read_images(job)
    members = [
        train_network(
            images.train,
            seed=job.seed + _APART * member,
            width=settings.width,
            steps=settings.steps,
            learning_rate=settings.learning_rate,
            classes=images.train.classes,
        )
        for member in range(settings.members)
    ]
    likelihood = Categorical(images.train.classes)
    data = DecisionData(
        scoring_batches(images.train),
        scoring_batches(images.validation),
        scoring_batches(images.test),
        {name: scoring_batches(other) for name, other in images.outside.items()},
    )
    problems = [Problem(model, likelihood) for model in members]
    results = decide_all(problems, data, settings.percent)
    return {**results, "data": images.sizes}
