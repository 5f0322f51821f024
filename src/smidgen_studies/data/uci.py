"""Regression on tables of numbers: the UCI sets in their usual splits.

A folder for each set: data.txt, index_features.txt, index_target.txt, and for each split
index_train_N.txt and index_test_N.txt. A tenth of the training rows calibrates, and
`stopping` of them stops the training: rows that stopped it are fitted too well to say how large
the noise is. Inputs and targets are standardised by the others, and scores are of standardised
targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from smidgen import evaluate
from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.likelihood import Gaussian
from smidgen.outputs.predictive import Predictive
from smidgen.outputs.problem import Problem
from smidgen.runtime.artifact import (
    read_tensor_file,
    reading,
    require_finite,
    require_like,
    write_tensor_file,
)
from smidgen.workflows.method import list_losses
from smidgen_studies.engine.cell import Job, locate
from smidgen_studies.engine.settings import Unsigned

_HELD_OUT, _MOST_STOPPING = 0.1, 0.5
_HIDDEN = 50
_WEIGHTS, _KEY = "model.safetensors", "smidgen-network"
InputsAndTargets = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class TableData:
    """What a study's file says of one data set."""

    name: str
    folder: str
    stopping: Unsigned = 0.0

    def __post_init__(self) -> None:
        if self.stopping > _MOST_STOPPING:
            raise ArgumentError(
                f"stopping of data {self.name!r} must be at most {_MOST_STOPPING}, got "
                f"{self.stopping}. Name the share of training rows that stop the training."
            )

    def check_files(self, root: Path | None, seeds: Sequence[int]) -> None:
        """Refuse seeds for which the folder has no split."""
        folder = locate(self.folder, root, self.name)
        there = [path.name for path in folder.glob("index_*_*.txt")]
        for seed in seeds:
            lost = {f"index_train_{seed}.txt", f"index_test_{seed}.txt"}.difference(there)
            if lost:
                raise DataError(
                    f"seeds must be splits of data {self.name!r}, got {seed}, and {folder} "
                    f"has no {min(lost)}. It has {len(there) // 2} splits: take those."
                )


@dataclass(frozen=True)
class Tables:
    """Inputs (N, D) and targets (N, 1) of one split, in fp64.

    Without rows that stop the training, those that calibrate do.
    """

    train: InputsAndTargets
    validation: InputsAndTargets
    test: InputsAndTargets
    stopping: InputsAndTargets | None = None

    def loader(self, name: str) -> list[InputsAndTargets]:
        """One batch of everything: the sets are small."""
        pair: InputsAndTargets | None = getattr(self, name)
        return [self.validation if pair is None else pair]

    def shuffled(self, seed: int, batches: int = 8) -> DataLoader[tuple[Tensor, ...]]:
        """About so many batches of the training rows, in a new order each time."""
        return DataLoader(
            TensorDataset(*self.train),
            batch_size=max(1, len(self.train[0]) // batches),
            shuffle=True,
            generator=torch.Generator().manual_seed(seed),
        )


def read_tables(job: Job) -> Tables:
    """Read the split whose number is the job's seed, standardised by the training rows."""
    about: TableData = job.data
    folder = locate(about.folder, job.root, about.name)
    try:
        values = np.loadtxt(folder / "data.txt")
        features, target, train, test = (
            _index(folder / f"index_{name}.txt")
            for name in ("features", "target", f"train_{job.seed}", f"test_{job.seed}")
        )
    except (OSError, ValueError) as error:
        raise DataError(
            f"{folder} must hold data.txt and the indices of split {job.seed}, got "
            f"{str(error).rstrip('.')}. Check --data."
        ) from error
    order = np.random.default_rng(job.seed).permutation(train)
    held = max(1, round(_HELD_OUT * len(train)))
    rest, stopping = order[held:], round(about.stopping * len(train))
    rows = {"train": rest[stopping:], "validation": order[:held], "test": test}
    if stopping:
        rows["stopping"] = rest[:stopping]
    x, y = (_standardise(values[:, i], rows["train"]) for i in (features, target))
    return Tables(**{n: (torch.tensor(x[i]), torch.tensor(y[i])) for n, i in rows.items()})


def _index(path: Path) -> Any:
    return np.atleast_1d(np.loadtxt(path)).astype(int)


def _standardise(values: Any, rows: Any) -> Any:
    spread = values[rows].std(0)
    return (values - values[rows].mean(0)) / np.where(spread > 0, spread, 1.0)


def make_network(features: int, seed: int) -> nn.Module:
    """Make the paper's network: two hidden layers of 50, leaky rectifiers."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        made = nn.Sequential(
            nn.Linear(features, _HIDDEN),
            nn.LeakyReLU(),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.LeakyReLU(),
            nn.Linear(_HIDDEN, 1),
        )
    return made.double()


def save_network(model: nn.Module, folder: Path) -> None:
    """Leave a network for other cells."""
    write_tensor_file(folder / _WEIGHTS, model.state_dict(), {}, key=_KEY)


def load_needed_problem(job: Job, tables: Tables) -> Problem:
    """Load the trained network that a cell needs, with unit noise for now."""
    if not job.needs:
        raise ArgumentError(
            "this kind of cell must need one of kind 'uci-map', got none. Add needs."
        )
    model = make_network(tables.train[0].shape[1], 0)
    path, advice = job.needs[0].artifact / _WEIGHTS, "Run the cell that made it again."
    tensors, _ = read_tensor_file(path, key=_KEY, what="network", advice=advice)
    with reading(path, "network", advice):
        for name, value in model.state_dict().items():
            require_finite(name, require_like(name, tensors[name], value))
        model.load_state_dict(tensors)
    return Problem(model.eval(), Gaussian(1))


@dataclass(frozen=True, eq=False)
class UciLevel:
    """One size of a scheme: what it predicts for the test rows, and what it cost."""

    percent: float
    weights: int
    fraction: float
    floats: int
    validation_nll: float
    predictive: Predictive
    settings: Mapping[str, Any]


def level_results(
    name: str, label: str, levels: Sequence[UciLevel], targets: Tensor
) -> dict[str, Any]:
    """Score all sizes on targets (N, 1); the method is the size that validation data chose."""
    listed = []
    for level in levels:
        scores = evaluate.summarise(level.predictive, targets)
        listed.append(
            {
                "scheme": name,
                "level": level.percent,
                "weights": level.weights,
                "fraction": level.fraction,
                "floats": level.floats,
                "validation_nll": level.validation_nll,
                "scores": {score: value.to_dict() for score, value in scores.items()},
                **level.settings,
            }
        )
    place = min(range(len(listed)), key=lambda i: listed[i]["validation_nll"])
    best = dict(listed[place])
    del best["scheme"]
    losses = list_losses(levels[place].predictive, targets)
    method = {"name": name, "label": label, **best, **losses}
    return {"methods": [method], "levels": listed, "data": {"test": len(targets)}}
