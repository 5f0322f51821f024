"""`Question`: a prompt with places for columns of a table, and the answers to choose among."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

from smidgen.errors import ArgumentError, DataError
from smidgen.integrations.labels import format_label, read_labels
from smidgen.integrations.reading.columns import name_source, read_columns
from smidgen.integrations.text import TextTable


@dataclass(frozen=True)
class Question:
    """What a language model is asked, and what it may answer.

    Args:
        template: The prompt, with names of columns in braces: "Review: {sentence} Sentiment:".
            Double a brace to write it.
        choices: The answers, in the order of the class numbers. They follow the prompt as
            they are written, so most begin with a space: " positive", " negative".
        chat: Ask through the tokenizer's chat template, the prompt as the user's message.

    Raises:
        ArgumentError: If the template has no column, or choices are fewer than two, blank or
            the same.
    """

    template: str
    choices: tuple[str, ...]
    chat: bool = False

    def __post_init__(self) -> None:
        given: object = self.choices
        if not isinstance(given, list | tuple):
            raise ArgumentError(
                f"choices must be a list of answers, got {given!r}. Pass two or more."
            )
        object.__setattr__(self, "choices", tuple(given))
        for choice in self.choices:
            if not isinstance(choice, str) or not choice.strip():
                raise ArgumentError(
                    f"choices must be words, got {choice!r}. Write every answer out."
                )
        if len(set(self.names)) < max(2, len(self.choices)):
            raise ArgumentError(
                "choices must be two answers or more, all different, got "
                f"{', '.join(map(repr, self.choices)) or 'none'}. Name every class once."
            )
        if not self.columns:
            raise ArgumentError(
                f"template must name a column in braces, got {format_label(self.template)}. "
                "Write {text} where the column 'text' shall stand."
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the template names, each once."""
        return tuple(dict.fromkeys(column for _, column in self._parts() if column))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes: the choices without the space around them."""
        return tuple(choice.strip() for choice in self.choices)

    def fill(
        self, columns: Mapping[str, Sequence[Any]], labels: Sequence[float] | None = None
    ) -> TextTable:
        """Write the prompt of every row; `labels` are numbers of choices, from 0."""
        for column in self.columns:
            if column not in columns:
                raise ArgumentError(
                    f"template must name columns that are there ({', '.join(columns)}), got "
                    f"{{{column}}}. Name one of them."
                )
        sizes = {len(columns[column]) for column in self.columns}
        if len(sizes) > 1:
            raise DataError(
                f"columns must be of one length, got {' and '.join(map(str, sorted(sizes)))}."
            )
        rows = range(sizes.pop())
        return TextTable(
            tuple(self._fill_row(columns, row) for row in rows),
            labels=None if labels is None else tuple(map(int, labels)),
            label_names=self.names,
        )

    def _fill_row(self, columns: Mapping[str, Sequence[Any]], row: int) -> str:
        pieces = []
        for literal, column in self._parts():
            pieces.append(literal)
            if column is None:
                continue
            value = columns[column][row]
            if value is None or not str(value).strip():
                raise DataError(
                    f"{column} must be a text in every row, got {format_label(value)} in row "
                    f"{row + 1}. Fill or remove the row."
                )
            pieces.append(str(value))
        return "".join(pieces)

    def _parts(self) -> list[tuple[str, str | None]]:
        """The text before each column, and the column; after the last, None."""
        try:
            found = list(Formatter().parse(self.template))
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                "template must have names of columns in braces, got "
                f"{format_label(self.template)} ({error}). Double a brace to write it."
            ) from error
        for _, column, form, conversion in found:
            if column is not None and (not column.strip() or form or conversion):
                raise ArgumentError(
                    "template must have plain names of columns in braces, got "
                    f"{format_label(self.template)}. Double a brace to write it."
                )
        return [(literal, column) for literal, column, _, _ in found]


def read_prompts(
    path: Any,
    answers: Question,
    *,
    label: str | int | None = "label",
    label_names: Sequence[str] | None = None,
) -> TextTable:
    """Read a file, as `read_text` does, and write the prompt of every row.

    Args:
        path: A .tsv, .txt (tabs), .csv, .jsonl, .json or .parquet file; or a
            `datasets.Dataset` or a pandas data frame.
        answers: The template and the choices.
        label: The column of the right answers: choices without the space around them, or
            their numbers from 0. None reads prompts only.
        label_names: What the file calls the choices, in their order, if it is not what they
            are.

    Returns:
        The prompts as texts, with the numbers of their answers.

    Raises:
        ArgumentError: If the file or a column is not there, or cannot be read.
        DataError: If a text or a label is missing, or a label is none of the choices.
    """
    named = {
        f"{{{name}}} in the template": int(name) if name.isdigit() else name
        for name in answers.columns
    }
    columns, stored = read_columns(path, {**named, "label": label})
    path = name_source(path)
    labels = None
    if label is not None:
        names = answers.names if label_names is None else tuple(label_names)
        if len(names) != len(answers.choices):
            raise ArgumentError(
                f"label_names must be {len(answers.choices)}, one for each choice, got "
                f"{len(names)}. Name them in the order of the choices."
            )
        values = columns[str(label)]
        if stored is not None and set(stored) == set(names):
            # The file numbers its classes in an order of its own.
            values = [stored[value] for value in values]
        labels, _ = read_labels(values, names, path)
    return answers.fill(columns, labels)
