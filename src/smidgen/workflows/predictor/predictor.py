"""`Predictor`: a ready folder in memory, called with rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from smidgen.decide import Rules
from smidgen.errors import ArgumentError, is_whole
from smidgen.integrations.reading.task_note import TaskNote
from smidgen.outputs.likelihood import Gaussian
from smidgen.posterior.base import Posterior
from smidgen.workflows.predictor.answers import Answers, make_answers
from smidgen.workflows.predictor.given_rows import list_row_columns, read_given_rows
from smidgen.workflows.run.dividing import TaskRows
from smidgen.workflows.run.task_model import TaskModel


@dataclass(frozen=True, eq=False, repr=False)
class Predictor:
    """A model with its posterior and its rules, which answers rows.

    Many threads may call one predictor at once.

    Args:
        task: The model, and what its training saw.
        posterior: A posterior of the model.
        rules: The rules of the posterior; those of another are refused.
    """

    task: TaskModel
    posterior: Posterior
    rules: Rules

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", self.rules.for_posterior(self.posterior))

    def __call__(self, rows: Any, *, batch_size: int | None = None) -> Answers:
        """Answer rows that are in memory, all of them at once.

        Args:
            rows: Texts: a list of texts, of tuples with a text for each column, or of dicts
                by column. A table: a list of dicts, or two axes in the columns' order.
                Images: an array (number, height, width[, channels]), or a list of arrays,
                pictures or paths. Texts and tables may be a DataFrame or a
                `datasets.Dataset`.
            batch_size: Rows of a batch; by default what suits the kind.

        Returns:
            The answers, in the order of the rows.

        Raises:
            DataError: If a row cannot be used; the message names it, counted from 1.
        """  # noqa: DOC502
        return self.answer(read_given_rows(self.note, rows), batch_size=batch_size)

    def __repr__(self) -> str:
        what = (
            self.note.label or "a number"
            if self.classes is None
            else f"{len(self.classes)} classes"
        )
        read = ", ".join(list_row_columns(self.note)) or f"shape {self.note.shape}"
        return f"Predictor({self.kind}: {read} -> {what}, {self.posterior.method})"

    @property
    def note(self) -> TaskNote:
        """What training saw."""
        return self.task.note

    @property
    def kind(self) -> str:
        """What a row is: "text", "table" or "images"."""
        return self.note.kind

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a row, the second text of a pair last; none for images."""
        return list_row_columns(self.note)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes; None for a regression."""
        return self.note.classes

    @property
    def is_regression(self) -> bool:
        """Whether it predicts a number."""
        return isinstance(self.posterior.likelihood, Gaussian)

    def answer(
        self, rows: TaskRows, *, batch_size: int | None = None, progress: bool = False
    ) -> Answers:
        """Answer rows that were read already, from a file or by `read_given_rows`.

        Args:
            rows: The rows.
            batch_size: Rows of a batch; by default what suits the kind.
            progress: Show a progress bar.

        Returns:
            The answers, in the order of the rows.

        Raises:
            ArgumentError: If batch_size is no whole number from 1.
        """
        if batch_size is not None and (not is_whole(batch_size) or batch_size < 1):
            raise ArgumentError(
                f"batch_size must be a whole number from 1, got {batch_size!r}. Try 64."
            )
        predictive = self.task.predict(
            self.posterior, rows, size=batch_size, progress=progress
        )
        return make_answers(self.task, self.rules, predictive)
