"""The point estimate of a run: a fine-tuned text model, an MLP or a small CNN."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from math import floor, log10
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import nn

import smidgen.fit as fit
from smidgen.errors import DataError
from smidgen.fit.epochs import Epoch
from smidgen.integrations.arrays import Arrays, measure_moments
from smidgen.integrations.plain_model import save_plain_model
from smidgen.integrations.reading.images import ImageSet
from smidgen.integrations.reading.scaling import measure_scaling
from smidgen.integrations.reading.tables import FeatureTable
from smidgen.integrations.reading.task_note import TaskKind, TaskNote
from smidgen.outputs.problem import Problem
from smidgen.sparse.architectures import PlainNetwork, Standardise
from smidgen.workflows.run.rows import RunRows
from smidgen.workflows.run.settings import RunSettings
from smidgen.workflows.run.task_model import BATCH_SIZES, TaskModel
from smidgen.workflows.run.text_base import load_text_base, save_text_model

HIDDEN = (64, 64)
"""Hidden units of the MLP that tables get."""
_RATES = {"text": 5e-5, "table": 3e-3, "images": 2e-3}
# Plain models start from nothing: about so many steps in all, in so many epochs.
_STEPS, _EPOCHS = 4000, (8, 200)
# Labels with such a standard deviation are predicted as they are.
_USUAL, _MOST_OFFSET = (0.1, 100.0), 1000.0
_TEXT_EPOCHS, _TEXT_PATIENCE = 5, 2


@dataclass(frozen=True, eq=False)
class Untrained:
    """A model before training, how it is saved after it, and the note of what is saved."""

    task: TaskModel
    save: Callable[[nn.Module, Path], Any]
    name: str
    note: TaskNote


def measure_task(data: RunRows, settings: RunSettings) -> TaskNote:
    """Add to the note what training rows alone decide: scaling, and the label's moments.

    Args:
        data: The rows.
        settings: How to train.

    Returns:
        The note of the whole task.

    Raises:
        DataError: If a number is to be predicted that never changes.
    """
    note, train = data.note, data.part("train")
    if isinstance(train, FeatureTable):
        note = replace(note, scaling=measure_scaling(train.cells))
    if note.kind == "text":
        note = replace(note, max_length=settings.max_length or settings.text_length.usual)
    if note.classes is None:
        labels = [float(label) for label in train.labels or ()]
        spread = pstdev(labels)
        if not spread:
            raise DataError(
                f"the label must be different numbers, got {labels[0]} in every training row. "
                "Name another column with --label, or add rows."
            )
        note = replace(note, target=(fmean(labels), spread))
    return note


def make_untrained(data: RunRows, note: TaskNote, settings: RunSettings) -> Untrained:
    """Build or load the model that a run trains.

    Args:
        data: The rows.
        note: What is known of the task.
        settings: How to train.

    Returns:
        The model, with its weights from the seed where they are new.
    """
    outputs = 1 if note.classes is None else len(note.classes)
    if note.kind == "text":
        network, tokenizer, base = load_text_base(
            settings.model, note, seed=settings.seed, device=settings.device
        )
        length = settings.text_length.fit(tokenizer)
        task = TaskModel(
            Problem(network), replace(note, base=base, max_length=length), tokenizer
        )
        return Untrained(task, save_text_model(tokenizer), base, task.note)
    train = data.part("train")
    if isinstance(train, ImageSet):
        network = PlainNetwork("cnn", train.shape, outputs)
        model = network.build(settings.seed)
        standardise = model[0]
        assert isinstance(standardise, Standardise)
        standardise.measure(*measure_moments(Arrays(train.inputs, torch.zeros(len(train)))))
        name = "a small network of convolutions"
    else:
        assert isinstance(train, FeatureTable)
        assert note.scaling is not None
        network = PlainNetwork("mlp", (note.scaling.width,), outputs, hidden=HIDDEN)
        model = network.build(settings.seed)
        _clear_unseen(model, note.scaling.encode(train.cells))
        name = f"an MLP of {' and '.join(map(str, HIDDEN))} hidden units"

    stored = note if note.target is None else replace(note, target=_find_unit(note.target))

    def save(trained: nn.Module, folder: Path) -> None:
        if note.target is not None and stored.target is not None:
            trained = _change_unit(trained, note.target, stored.target)
        save_plain_model(trained, network, folder, overwrite=True)

    task = TaskModel(Problem(model.to(settings.device)), note)
    return Untrained(task, save, name, stored)


def train_model(
    data: RunRows,
    start: Untrained,
    settings: RunSettings,
    checkpoint: Path,
    *,
    progress: bool = True,
) -> tuple[nn.Module, tuple[Epoch, ...], Epoch]:
    """Train until the validation rows gain no more.

    Args:
        data: The rows.
        start: What to train.
        settings: How.
        checkpoint: A file to resume from if interrupted.
        progress: Show a progress bar.

    Returns:
        The trained model, the epochs, and the one whose weights it has.
    """
    task, kind = start.task, start.task.note.kind
    train = data.part("train")
    size = settings.batch_size or BATCH_SIZES[kind]
    result = fit.finetune(
        task.problem,
        task.batch(train, size=size, shuffle=True, seed=settings.seed),
        validation=task.batch(data.part("validation"), size=size),
        settings=plan_training(
            kind,
            len(train),
            batch_size=size,
            epochs=settings.epochs,
            learning_rate=settings.learning_rate,
        ),
        seed=settings.seed,
        checkpoint=checkpoint,
        progress=progress,
    )
    return result.model, result.history, result.best


def plan_training(
    kind: TaskKind,
    rows: int,
    *,
    batch_size: int,
    epochs: int | None = None,
    learning_rate: float | None = None,
) -> fit.FinetuneSettings:
    """Choose how long and how fast to train, by what a row is and how many there are.

    Args:
        kind: What a row is: texts have a pretrained model, all others start from nothing.
        rows: How many train.
        batch_size: Rows of a batch.
        epochs: The largest number of epochs, where it was chosen.
        learning_rate: The peak rate, where it was chosen.

    Returns:
        The settings.
    """
    if kind == "text":
        usual, patience = _TEXT_EPOCHS, _TEXT_PATIENCE
    else:
        needed = -(-_STEPS // -(-rows // batch_size))
        usual = min(max(needed, _EPOCHS[0]), _EPOCHS[1])
        patience = max(5, usual // 5)
    return fit.FinetuneSettings(
        epochs=usual if epochs is None else epochs,
        learning_rate=_RATES[kind] if learning_rate is None else learning_rate,
        patience=patience,
        stop_on=None if kind == "text" else "nll",
    )


def _find_unit(target: tuple[float, float]) -> tuple[float, float]:
    """Find an offset and a unit for a model's outputs: those of the label if that is possible."""
    # Precisions are searched over ten decades, which outputs near one suit: labels of much
    # larger or smaller numbers are counted in a power of ten. And fp32 has seven digits.
    mean, spread = target
    unit = 1.0
    if not _USUAL[0] <= spread < _USUAL[1]:
        unit = float(10.0 ** floor(log10(spread)))
    return (mean if abs(mean) > _MOST_OFFSET * spread else 0.0), unit


def _change_unit(
    model: nn.Module, before: tuple[float, float], after: tuple[float, float]
) -> nn.Module:
    """Copy a regression so that its last layer puts out numbers in another unit."""
    changed = deepcopy(model)
    last = [layer for layer in changed.modules() if isinstance(layer, nn.Linear)][-1]
    scale, shift = before[1] / after[1], (before[0] - after[0]) / after[1]
    with torch.no_grad():
        last.weight.mul_(scale)
        last.bias.mul_(scale).add_(shift)
    return changed


def _clear_unseen(model: nn.Module, inputs: torch.Tensor) -> None:
    """Zero the weights of inputs that are zero in every training row: no gradient reaches them."""
    # A category that training did not have then changes no answer, and adds to its variance.
    unseen = (inputs == 0).all(0)
    first = next(layer for layer in model.modules() if isinstance(layer, nn.Linear))
    with torch.no_grad():
        first.weight[:, unseen] = 0.0
