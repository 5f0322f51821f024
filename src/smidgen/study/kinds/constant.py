"""The constant predictor: the share of each class among the training labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from smidgen.predictive import CategoricalPredictive
from smidgen.study.cell import Job
from smidgen.study.comparison import Method, compare
from smidgen.study.text_data import TextData, draw

Data = TextData
ON_PROCESSOR = True


@dataclass(frozen=True)
class Settings:
    """Nothing can be told."""

    reported_methods = ("constant",)


def run(job: Job) -> Mapping[str, Any]:
    """Predict the same for every text."""
    data = draw(job)
    labels = torch.tensor(data.train.labels)
    counts = torch.bincount(labels, minlength=data.classes).double()
    logits = (counts / counts.sum()).log().expand(len(data.test), -1)
    method = Method("constant", CategoricalPredictive.from_logits(logits))
    return compare([method], torch.tensor(data.test.labels))
