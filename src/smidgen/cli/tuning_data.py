"""What `smidgen tune` works on: texts, and a pretrained model with a new head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smidgen.cli import texts
from smidgen.cli.finetune import classes_of

if TYPE_CHECKING:
    from smidgen.heads import Head
    from smidgen.integrations.text import TextTable


@dataclass(frozen=True)
class TuningData:
    """The model with its new head, and how to read its data."""

    network: Any
    head: Head
    tokenizer: Any
    tables: tuple[TextTable, TextTable]
    batches: Callable[..., Any]

    @property
    def head_size(self) -> int:
        """How many weights are of the head."""
        return sum(self.network.get_parameter(name).numel() for name in self._new())

    @property
    def head_modules(self) -> list[str]:
        """The modules of the head, in the model's order."""
        return list(dict.fromkeys(name.rpartition(".")[0] for name in self._new()))

    def _new(self) -> list[str]:
        from smidgen.heads import head_of

        return list(head_of(self.network, self.head))


def load_data(
    model: str,
    files: tuple[Path, Path | None],
    columns: tuple[str, str | None, str],
    batch_size: int,
    max_length: int,
    seed: int,
    device: str,
) -> TuningData:
    """Load the data, and the model with a new head.

    Args:
        model: A model folder, or a hub id.
        files: Training data, and held-out data; a tenth of the former without.
        columns: Those of text, second text and label.
        batch_size: Texts in a batch.
        max_length: Tokens kept of a text.
        seed: Of the head, the held-out rows and the order.
        device: Where the model goes.

    Returns:
        All of it.
    """
    from smidgen.integrations.huggingface import load_with_head

    table = texts.read_table(files[0], *columns)
    if files[1] is None:
        table, held_out = _parted(table, files[0], seed)
    else:
        held_out = texts.read_table(files[1], *columns, table.label_names)
    assert table.labels is not None
    numbers = any(isinstance(each, float) for each in table.labels)
    classes = 1 if numbers else classes_of(table, files[0])
    loaded = load_with_head(model, labels=classes, seed=seed, device=device)
    network, tokenizer = loaded.model, loaded.tokenizer
    if table.label_names is not None:
        network.config.id2label = dict(enumerate(table.label_names))
        network.config.label2id = {n: i for i, n in enumerate(table.label_names)}

    def batches(rows: TextTable, shuffle: bool = False) -> Any:
        sizes = batch_size, max_length
        return texts.batches_of(rows, tokenizer, *sizes, shuffle=shuffle, seed=seed)

    return TuningData(network, loaded.head, tokenizer, (table, held_out), batches)


def _parted(table: TextTable, path: Path, seed: int) -> tuple[TextTable, TextTable]:
    """Hold a tenth of the rows out."""
    from random import Random

    from smidgen.errors import DataError

    rows = Random(seed).sample(range(len(table)), len(table))
    count = len(table) // 10
    if not count:
        raise DataError(
            f"{path} must hold 10 texts or more to hold a tenth of them out, got "
            f"{len(table)}. Give held-out data with --val."
        )
    return table.take(sorted(rows[count:])), table.take(sorted(rows[:count]))
