"""A network trained on one kind of images, then tuned to another: the point estimate.

Leaves both, what it was and what it became, for the cells that ask which of its weights
are worth being uncertain about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from smidgen import fit
from smidgen.errors import ArgumentError
from smidgen.integrations.arrays import ArrayBatches
from smidgen.integrations.plain_networks import mlp
from smidgen.likelihood import Categorical
from smidgen.prediction import point_outputs
from smidgen.problem import Problem
from smidgen.study.cell import Job, read_settings
from smidgen.study.comparison import compare, point_methods
from smidgen.study.image_data import Images, read_images, scoring

_BEFORE, _AFTER = "pretrained.safetensors", "tuned.safetensors"


@dataclass(frozen=True)
class Settings:
    """The network and its two trainings."""

    hidden: tuple[int, ...] = (100,)
    pretraining_epochs: int = 3
    epochs: int = 30
    patience: int = 5
    learning_rate: float = 1e-3
    batch: int = 64


def run(job: Job) -> Mapping[str, Any]:
    """Train, tune, save both networks and report the second."""
    told = read_settings(Settings, job.settings, "image-map")
    data = read_images(job)
    before = _pretrained(told, data, job.seed)
    tuned = fit.finetune(
        Problem(before, Categorical(data.train.classes)),
        data.shuffled(told.batch, job.seed),
        scoring(data.validation),
        epochs=told.epochs,
        patience=told.patience,
        learning_rate=told.learning_rate,
        stop_on="nll",
        seed=job.seed,
    )
    job.artifact.mkdir()
    for name, model in ((_BEFORE, before), (_AFTER, tuned.model)):
        save_file(dict(model.state_dict()), job.artifact / name)
    problem = Problem(tuned.model, Categorical(data.train.classes))
    held, labels = point_outputs(problem, scoring(data.validation))
    assert labels is not None
    methods = point_methods(
        problem, scoring(data.test), temperature=fit.temperature(held, labels)
    )
    sizes = {name: len(getattr(data, name)) for name in ("train", "validation", "test")}
    history = [asdict(epoch) for epoch in tuned.history]
    return {**compare(*methods), "finetuning": history, "data": sizes}


def needed_networks(job: Job, data: Images) -> tuple[nn.Module, nn.Module]:
    """Load the networks that a cell needs: before tuning, and after.

    Args:
        job: The job.
        data: Its images.

    Returns:
        Both networks, in evaluation mode.

    Raises:
        ArgumentError: If it needs no cell of this kind.
    """
    folder = job.needs[0].artifact if job.needs else Path("nothing")
    if not (folder / _AFTER).is_file():
        raise ArgumentError(
            "this kind of cell must need one of kind 'image-map', got none. Add needs."
        )
    found = []
    for name in (_BEFORE, _AFTER):
        tensors = load_file(folder / name)
        # Sizes of the hidden layers are those of the biases, but for the last.
        sizes = [len(t) for n, t in tensors.items() if n.endswith("bias")]
        model = mlp(tuple(data.train.inputs.shape[1:]), sizes[-1], hidden=sizes[:-1])
        model.load_state_dict(tensors)
        found.append(model.eval())
    return found[0], found[1]


def _pretrained(told: Settings, data: Images, seed: int) -> nn.Module:
    shape = tuple(data.train.inputs.shape[1:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = mlp(shape, data.train.classes, hidden=told.hidden)
    if data.before is None:
        return model
    trained = fit.finetune(
        Problem(model, Categorical(data.train.classes)),
        ArrayBatches(data.before, told.batch, shuffle=True, seed=seed),
        scoring(data.before[:1000]),
        epochs=told.pretraining_epochs,
        patience=told.pretraining_epochs,
        learning_rate=told.learning_rate,
        seed=seed,
    )
    return trained.model
