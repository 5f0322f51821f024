"""A trained model and what its training saw: it reads, batches and predicts rows of its kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from smidgen.integrations.arrays import ArrayBatches, Arrays
from smidgen.integrations.labels import Labels
from smidgen.integrations.plain_model import load_plain_model
from smidgen.integrations.reading.images import ImageSet
from smidgen.integrations.reading.tables import FeatureTable
from smidgen.integrations.reading.task_note import TaskNote
from smidgen.integrations.text import TextTable
from smidgen.outputs.predictive import Predictive
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Posterior
from smidgen.prediction.predict import predict_batches
from smidgen.types import Batch
from smidgen.workflows.run.dividing import TaskRows
from smidgen.workflows.run.text_base import batch_texts, load_text_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH_SIZES = {"text": 16, "table": 64, "images": 64}
"""Rows of a batch, by what a row is."""


@dataclass(frozen=True, eq=False)
class TaskModel:
    """A model with the note of its task, and for texts its tokenizer."""

    problem: Problem
    note: TaskNote
    tokenizer: PreTrainedTokenizerBase | None = None
    _tokenizing: Any = field(default_factory=Lock, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        # A copy in another process, or beside this one, has a lock of its own.
        return {n: v for n, v in vars(self).items() if n != "_tokenizing"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _tokenizing=Lock())

    def batch(
        self,
        rows: TaskRows,
        *,
        size: int | None = None,
        shuffle: bool = False,
        seed: int = 0,
    ) -> Iterable[Batch]:
        """Make batches of rows, with their labels if they have them.

        Args:
            rows: Texts, cells of a table, or images.
            size: Rows of a batch; by default what suits the kind.
            shuffle: Draw a new order each time.
            seed: Fixes the orders.

        Returns:
            The batches, which can be read again.
        """
        size = size or BATCH_SIZES[self.note.kind]
        labels = self._scale(rows.labels)
        if isinstance(rows, TextTable):
            table = replace(rows, labels=labels)
            # Fast tokenizers refuse to be set up for one thread while another uses them.
            with self._tokenizing:
                return batch_texts(
                    table, self.tokenizer, self.note, size, shuffle=shuffle, seed=seed
                )
        inputs = self._find_inputs(rows)
        if labels is None:
            return list(inputs.split(size))
        targets = torch.tensor(labels)
        if self.note.classes is None:
            targets = targets.float()[:, None]  # (N, 1)
        return ArrayBatches(Arrays(inputs, targets), size, shuffle=shuffle, seed=seed)

    def predict(
        self,
        posterior: Posterior,
        rows: TaskRows,
        *,
        size: int | None = None,
        progress: bool = True,
    ) -> Predictive:
        """Predict rows, in their order.

        Args:
            posterior: A posterior of the model.
            rows: What to predict.
            size: Rows of a batch.
            progress: Show a progress bar.

        Returns:
            The predictive; that of a regression is in the model's unit.
        """
        if not isinstance(rows, TextTable):
            batches = self.batch(rows, size=size)
            return predict_batches(posterior, self.problem, batches, progress=progress)
        # Texts of one length share a batch; then back into the order of the file.
        order = rows.by_length()
        batches = self.batch(rows.take(order), size=size)
        predictive = predict_batches(posterior, self.problem, batches, progress=progress)
        return predictive.take(torch.tensor(order).argsort())

    def unscale(self, values: Tensor) -> Tensor:
        """Turn targets of a regression into labels."""
        mean, spread = self.note.target or (0.0, 1.0)
        return values.double() * spread + mean

    def _scale(self, labels: Labels | None) -> Any:
        """Turn the labels of a regression into targets."""
        if labels is None or self.note.target is None:
            return labels
        mean, spread = self.note.target
        return tuple((label - mean) / spread for label in labels)

    def _find_inputs(self, rows: FeatureTable | ImageSet) -> Tensor:
        if isinstance(rows, ImageSet):
            return rows.inputs
        assert self.note.scaling is not None
        return self.note.scaling.encode(rows.cells)


def load_task_model(
    folder: Path,
    note: TaskNote,
    *,
    device: str = "cpu",
    base: str | Path | None = None,
) -> TaskModel:
    """Load a trained model to go with the note of its task.

    Args:
        folder: The folder of the model.
        note: What training saw.
        device: Where to compute.
        base: A folder with the base that the model was made of, if it names one.

    Returns:
        The model.
    """
    if note.kind != "text":
        return TaskModel(Problem(load_plain_model(folder).to(device)), note)
    network, tokenizer = load_text_model(folder, device=device, base=base)
    return TaskModel(Problem(network), note, tokenizer)


def name_rows(rows: TaskRows) -> Sequence[str]:
    """Show each row as a text, for people: the text, the cells, or the image's name."""
    if isinstance(rows, TextTable):
        pairs = rows.pairs or ("",) * len(rows)
        return [f"{a} | {b}" if b else a for a, b in zip(rows.texts, pairs, strict=True)]
    if isinstance(rows, FeatureTable):
        cells = zip(*rows.cells.values(), strict=True)
        return [
            ", ".join(f"{n} {v}" for n, v in zip(rows.cells, row, strict=True))
            for row in cells
        ]
    return rows.files or [f"image {number}" for number in range(len(rows))]
