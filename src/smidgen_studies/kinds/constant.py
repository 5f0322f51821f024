"""The constant predictor: the frequency of each class among the training labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from smidgen.outputs.predictive import CategoricalPredictive
from smidgen.workflows.method import Method, score_methods
from smidgen_studies.data.text import TextData, draw
from smidgen_studies.engine.cell import Job

Data = TextData
ON_PROCESSOR = True


@dataclass(frozen=True)
class Settings:
    """None."""

    reported_methods = ("constant",)


def run(job: Job) -> Mapping[str, Any]:
    """Predict the same for every text."""
    data = draw(job)
    labels = torch.tensor(data.train.labels)
    counts = torch.bincount(labels, minlength=data.classes).double()
    logits = (counts / counts.sum()).log().expand(len(data.test), -1)
    method = Method("constant", CategoricalPredictive.from_logits(logits))
    return score_methods([method], torch.tensor(data.test.labels))
