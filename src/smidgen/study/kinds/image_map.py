"""A network trained on one kind of images, then tuned to another: the point estimate.

Leaves both, what it was and what it became, for the cells that ask which of its weights
are worth being uncertain about.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from safetensors.torch import load_file, save_file
from torch import nn

from smidgen import fit
from smidgen.errors import ArgumentError
from smidgen.integrations.arrays import ArrayBatches
from smidgen.likelihood import Categorical
from smidgen.prediction import point_outputs
from smidgen.problem import Problem
from smidgen.sparse.plain_networks import PlainNetwork
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
    if not job.needs or job.needs[0].record.config["kind"] != "image-map":
        raise ArgumentError(
            "this kind of cell must need one of kind 'image-map', got none. Add needs."
        )
    made = job.needs[0]
    told = read_settings(Settings, made.record.config["settings"], "image-map")
    found = []
    for name in (_BEFORE, _AFTER):
        model = _network(told, data, 0)
        model.load_state_dict(load_file(made.artifact / name))
        found.append(model.eval())
    return found[0], found[1]


def _network(told: Settings, data: Images, seed: int) -> nn.Module:
    shape = tuple(data.train.inputs.shape[1:])
    return PlainNetwork("mlp", shape, data.train.classes, told.hidden).build(seed)


def _pretrained(told: Settings, data: Images, seed: int) -> nn.Module:
    model = _network(told, data, seed)
    if data.before is None:
        return model
    held = len(data.before) // 20
    trained = fit.finetune(
        Problem(model, Categorical(data.train.classes)),
        ArrayBatches(data.before[held:], told.batch, shuffle=True, seed=seed),
        scoring(data.before[:held]),
        epochs=told.pretraining_epochs,
        patience=told.pretraining_epochs,
        learning_rate=told.learning_rate,
        seed=seed,
    )
    return trained.model
