"""Text data of a study: drawn anew for each seed, tokenised for a model.

A data set of a study says:

    train, test        files under the data folder, or with their own path
    validation         a file; left out, part of `train` is held out
    text, text_pair, label
                       columns
    train_size, validation_size, test_size
                       how many rows; all of `train` but the held-out tenth if left out
    top_up             rows of `train` that nobody trained on join a test file that has
                       fewer rows than `test_size`
    disjoint           no sentence, first or second, stands in two of the three sets
    outside            files of other texts by name, of which a model should be less certain;
                       `outside_text` are their columns, `outside_size` how many of their
                       rows are taken
    shuffle_test       a seed, the same for all seeds of a study: files that are sorted by
                       source have first rows of one kind
    numbers            labels are numbers, not classes; they are standardised by the
                       training rows
    metric             the task's own score: accuracy, matthews or pearson
    bf16               passes of training and validation in mixed precision; test scores
                       are of fp32 passes
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from smidgen.errors import ArgumentError, DataError, warn
from smidgen.integrations.huggingface import make_text_loader
from smidgen.integrations.text import TextTable, read_text
from smidgen.outputs.batches import model_outputs
from smidgen.types import Batch, Forward
from smidgen_studies.engine.cell import Job, locate
from smidgen_studies.engine.settings import Count, Natural
from smidgen_studies.methods.task_scores import Metric

SplitLoader = DataLoader[dict[str, Tensor]]
_HELD_OUT = 0.1
# Single rows that were copied are no news.
_FEW_REPEATED = 0.01


@dataclass(frozen=True)
class TextData:
    """What a study's file says of one data set."""

    name: str
    train: str
    test: str
    validation: str | None = None
    text: str | int = "text"
    text_pair: str | int | None = None
    label: str | int = "label"
    train_size: Count | None = None
    validation_size: Count | None = None
    test_size: Count | None = None
    top_up: bool = False
    disjoint: bool = False
    shuffle_test: Natural | None = None
    numbers: bool = False
    metric: Metric = "accuracy"
    batch_size: Count = 16
    max_length: Count = 128
    bf16: bool = False
    outside: Mapping[str, str] = field(default_factory=dict)
    outside_text: Mapping[str, str] = field(default_factory=dict)
    outside_size: Count = 500

    def __post_init__(self) -> None:
        if self.validation is not None and self.validation_size is not None:
            raise ArgumentError(
                "validation_size is for rows drawn from the training file, and there is a "
                f"file for validation, {self.validation!r}; got {self.validation_size}. "
                "Leave one of them out."
            )

    def check_files(self, root: Path | None, seeds: Sequence[int]) -> None:
        """Refuse files that hold too few rows, or not the columns; all seeds are alike."""
        _draw(self, root, seeds[0])
        _read_outside(self, root)


@dataclass(frozen=True)
class TextSplit:
    """The rows of one seed; `classes` of the whole file, 1 if labels are numbers."""

    train: TextTable
    validation: TextTable
    test: TextTable
    about: TextData
    classes: int

    @property
    def forward(self) -> Forward:
        """How outputs are computed while a model is trained and chosen."""
        return mixed_outputs if self.about.bf16 else model_outputs

    @property
    def sizes(self) -> dict[str, int]:
        """How many rows each set has."""
        return {name: len(getattr(self, name)) for name in ("train", "validation", "test")}

    def labels(self, name: str) -> Tensor:
        """The labels of a set, in the order of its loader."""
        table: TextTable = getattr(self, name)
        return torch.tensor(table.take(table.by_length()).labels)

    def loaders(
        self, tokenizer: PreTrainedTokenizerBase, batch_size: int | None = None
    ) -> dict[str, SplitLoader]:
        """Make batches of texts of like length, always in the same order."""
        size = batch_size or self.about.batch_size
        return {
            name: self._loader(table.take(table.by_length()), tokenizer, batch_size=size)
            for name, table in vars(self).items()
            if isinstance(table, TextTable)
        }

    def batch(self, table: TextTable, tokenizer: PreTrainedTokenizerBase) -> SplitLoader:
        """Make batches of other texts, from short to long."""
        size = self.about.batch_size
        return self._loader(table.take(table.by_length()), tokenizer, batch_size=size)

    def take_validation(self, count: int) -> TextSplit:
        """Keep only the first validation rows."""
        rows = range(min(count, len(self.validation)))
        return replace(self, validation=self.validation.take(rows))

    def shuffled(self, tokenizer: PreTrainedTokenizerBase, seed: int) -> SplitLoader:
        """Make training batches of a new order each time through."""
        size = self.about.batch_size
        return self._loader(self.train, tokenizer, batch_size=size, shuffle=True, seed=seed)

    def _loader(
        self, table: TextTable, tokenizer: PreTrainedTokenizerBase, **how: Any
    ) -> SplitLoader:
        length = min(self.about.max_length, tokenizer.model_max_length)
        return make_text_loader(table, tokenizer, max_length=length, **how)


def draw(job: Job) -> TextSplit:
    """Draw training, validation and test rows of a job's data, by its seed."""
    return _draw(job.data, job.root, job.seed)


def read_outside(job: Job) -> dict[str, TextTable]:
    """Read the other texts of a job's data, the same rows for every seed."""
    return _read_outside(job.data, job.root)


def _read_outside(about: TextData, root: Path | None) -> dict[str, TextTable]:
    tables = {}
    for name, file in about.outside.items():
        column = about.outside_text.get(name, about.text)
        table = read_text(locate(file, root, about.name), text=column, label=None)
        rows = _shuffled(range(len(table)), about.shuffle_test or 0)
        tables[name] = table.take(rows[: about.outside_size])
    return tables


def _draw(about: TextData, root: Path | None, seed: int) -> TextSplit:
    def read(name: str, label_names: Sequence[str] | None = None) -> TextTable:
        return read_text(
            locate(name, root, about.name),
            text=about.text,
            text_pair=about.text_pair,
            label=about.label,
            label_names=label_names,
        )

    everything = read(about.train)
    names = everything.label_names
    test = read(about.test, names)
    if about.shuffle_test is not None:
        test = test.take(_shuffled(range(len(test)), about.shuffle_test))
    rows, most = _distinct(everything, about.train), about.test_size or len(test)
    if about.top_up and most > len(test):
        # Once for all seeds, so that no seed trains on or chooses by another's test rows.
        spare = _shuffled(rows, about.shuffle_test or 0)[: most - len(test)]
        test = join_tables(test, everything.take(spare))
        rows = sorted(set(rows) - set(spare))
    test = test.take(range(min(most, len(test))))
    if about.disjoint:
        rows = _strangers(everything, rows, test)
    order = _shuffled(rows, seed)
    held = about.validation_size or max(1, round(_HELD_OUT * len(order)))
    if about.validation is not None:
        held = 0
    size = about.train_size or len(order) - held
    rest = [*order[:size], *order[size + held :]]
    if about.validation is None:
        validation = everything.take(order[size : size + held])
    else:
        validation = read(about.validation, names)
    if about.disjoint:
        rest = _strangers(everything, rest, validation)
    if size < 1 or len(rest) < (about.train_size or 1) or len(order) < size + held:
        raise DataError(
            f"{about.train} must hold {size + held} different texts for data "
            f"{about.name!r}, got {len(rest) + len(order[size : size + held])}. Lower "
            "train_size or validation_size."
        )
    train = everything.take(rest[:size])
    if about.numbers:
        train, validation, test = _standardised(train, validation, test)
    classes = 1 if about.numbers else everything.classes(f"label of {about.train}")
    return TextSplit(train, validation, test, about, classes)


def mixed_outputs(model: nn.Module, batch: Batch) -> Tensor:
    """Compute outputs in mixed precision (bf16)."""
    device = next(model.parameters()).device.type
    with torch.autocast(device, torch.bfloat16):
        return model_outputs(model, batch)


def _shuffled(rows: Iterable[int], seed: int) -> list[int]:
    order = list(rows)
    random.Random(seed).shuffle(order)
    return order


def _standardised(*tables: TextTable) -> list[TextTable]:
    """Numbers less their mean, over their standard deviation, in the first table."""
    known = tables[0].labels or ()
    middle, width = fmean(known), stdev(known) or 1.0
    return [
        replace(table, labels=tuple((y - middle) / width for y in table.labels or ()))
        for table in tables
    ]


def _distinct(table: TextTable, file: str) -> list[int]:
    """The first row of each text, so that none is both trained on and held out."""
    first = {text: i for i, text in reversed(list(enumerate(table.texts)))}
    repeated = len(table) - len(first)
    if repeated > _FEW_REPEATED * len(table):
        warn(
            f"{repeated} of {len(table)} rows of {file} have the same first text as "
            "another and are left out, so that none is both trained on and held out."
        )
    return sorted(first.values())


def _strangers(table: TextTable, rows: Iterable[int], known: TextTable) -> list[int]:
    """Keep the rows neither of whose sentences stands in another table, on either side."""
    seen = {sentence for i in range(len(known)) for sentence in _sentences(known, i)}
    return [i for i in rows if not _sentences(table, i) & seen]


def _sentences(table: TextTable, row: int) -> set[str]:
    """The sentences of a row, without regard to case and outer space."""
    texts = (table.texts, *(() if table.pairs is None else (table.pairs,)))
    return {column[row].strip().casefold() for column in texts}


def join_tables(left: TextTable, right: TextTable) -> TextTable:
    """Append the rows of one table to those of another."""
    pairs = None if left.pairs is None else (*left.pairs, *(right.pairs or ()))
    labels = (*(left.labels or ()), *(right.labels or ()))
    return TextTable((*left.texts, *right.texts), pairs, labels, left.label_names)
