"""Cached predictions of four real data sets; `make_decisions.py` made them and says how."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from smidgen.outputs.predictive import (
    CategoricalPredictive,
    GaussianPredictive,
    Predictive,
)

FOLDER = Path(__file__).parent
CLASSES = ("sst2", "agnews")
NUMBERS = ("concrete", "energy")


def read_cached(name: str) -> tuple[Predictive, Tensor]:
    """Read the predictions and targets of one data set."""
    with np.load(FOLDER / f"{name}.npz") as stored:
        held = {key: torch.from_numpy(stored[key]).double() for key in stored.files}
    targets = held.pop("targets")
    if name in NUMBERS:
        return GaussianPredictive(**held), targets
    temperature = float(held.pop("temperature"))
    covariance = unpack_symmetric(held.pop("covariance"), held["logits"].shape[1])
    log_probs, logits = held["log_probs"].log_softmax(-1), held["logits"]
    predictive = CategoricalPredictive(log_probs, logits, covariance, temperature)
    return predictive, targets.long()


def unpack_symmetric(packed: Tensor, classes: int) -> Tensor:
    """The matrices of lower triangles."""
    rows, columns = torch.tril_indices(classes, classes)
    covariance = packed.new_zeros(len(packed), classes, classes)
    covariance[:, rows, columns] = packed
    covariance[:, columns, rows] = packed
    return covariance
