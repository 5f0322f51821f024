"""What the text commands share: options, and reading models and data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smidgen.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import DataLoader
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from smidgen.integrations.text import TextTable

Model = Annotated[str, typer.Argument(help="A model folder, or a hub id.")]
PosteriorFolder = Annotated[Path, typer.Argument(help="A folder made by 'smidgen fit'.")]
Text = Annotated[
    str,
    typer.Option(
        "--text", help="Column of the text; numbers from 0 without a header line."
    ),
]
Pair = Annotated[str | None, typer.Option("--text-pair", help="Column of the second text.")]
Label = Annotated[str, typer.Option("--label", help="Column of the label.")]
BatchSize = Annotated[int, typer.Option(help="Texts in a batch.", min=1)]
MaxLength = Annotated[int, typer.Option(help="Tokens kept of a text.", min=3)]


def _here(given: str) -> str:
    """Settle where the work is done, before any is."""
    from smidgen.integrations.devices import find_device

    return str(find_device(given, "--device"))


Device = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        callback=_here,
        help="Where: cpu, cuda, cuda:1, mps; auto takes CUDA if it is there.",
    ),
]
Json = Annotated[Path | None, typer.Option("--json", help="Write the findings to FILE.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


def load_model(
    model: str, *files: Path, device: str = "cpu"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a trained classifier and its tokenizer.

    Args:
        model: The model.
        files: Data files that must be there; looked for first, a model may take long.
        device: Where the model goes.

    Returns:
        Both.

    Raises:
        DataError: If a file is missing.
    """
    from smidgen.integrations.huggingface import load_classifier

    for path in files:
        if not path.is_file():
            raise DataError(
                f"data must be a file that exists, got {str(path)!r}. Check the spelling."
            )
    return load_classifier(model, device=device)


def read_table(
    path: Path,
    text: str,
    text_pair: str | None,
    label: str | None,
    names: tuple[str, ...] | None = None,
) -> TextTable:
    """Read a data file; columns of digits are numbers of columns."""
    from smidgen.integrations.text import read_text

    return read_text(
        path,
        text=_column(text),
        text_pair=None if text_pair is None else _column(text_pair),
        label=None if label is None else _column(label),
        label_names=names,
    )


def batches_of(
    table: TextTable,
    tokenizer: PreTrainedTokenizerBase,
    batch_size: int,
    max_length: int,
    *,
    shuffle: bool = False,
    seed: int = 0,
) -> DataLoader[dict[str, Tensor]]:
    """Tokenise a table into batches."""
    from smidgen.integrations.huggingface import make_text_loader

    return make_text_loader(
        table,
        tokenizer,
        batch_size=batch_size,
        max_length=min(max_length, tokenizer.model_max_length),
        shuffle=shuffle,
        seed=seed,
    )


def shuffled(
    table: TextTable,
    tokenizer: PreTrainedTokenizerBase,
    batch_size: int,
    max_length: int,
    seed: int,
) -> DataLoader[dict[str, Tensor]]:
    """Tokenise a table into batches of a new order each time through."""
    return batches_of(table, tokenizer, batch_size, max_length, shuffle=True, seed=seed)


def label_names(network: PreTrainedModel) -> tuple[str, ...] | None:
    """Tell the model's own names of its classes, unless they are the defaults."""
    names = tuple(network.config.id2label[i] for i in range(network.config.num_labels))
    return None if names[0] == "LABEL_0" else names


def _column(word: str) -> str | int:
    return int(word) if word.isdigit() else word
