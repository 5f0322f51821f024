"""What the commands for text share: options, and loading models and data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from smidgen.cli.options.lists import require_files

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import DataLoader
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from smidgen.integrations.text import TextTable
    from smidgen.integrations.text_length import TextLength

Model = Annotated[str, Argument(help="Folder of the model, or its Hugging Face id.")]
PosteriorFolder = Annotated[
    Path | None,
    Argument(
        help="Folder of the posterior, as 'smidgen fit' saves it; none if MODEL is a folder "
        "made by 'smidgen run', which has its own.",
    ),
]
Text = Annotated[
    str,
    Option(
        "--text",
        help="Column of the text: its name, or its number from 0 if the file has no header.",
    ),
]
Pair = Annotated[
    str | None, Option("--text-pair", help="Column of a second text, for pairs.")
]
Label = Annotated[str, Option("--label", help="Column of the label.")]
Train = Annotated[
    Path,
    Option(callback=require_files, help="Training data: TSV, CSV, JSONL or Parquet."),
]
TrainedOn = Annotated[
    Path, Option(callback=require_files, help="The data the model was trained on.")
]
Epochs = Annotated[int, Option(min=1, help="Largest number of epochs.")]
LearningRate = Annotated[float, Option("--lr", help="Peak learning rate.")]
Patience = Annotated[int, Option(min=1, help="Epochs without gain before stopping.")]
BatchSize = Annotated[int, Option(help="Texts per batch.", min=1)]
MaxLength = Annotated[int, Option(help="Longer texts are cut to this many tokens.", min=3)]


def _find_device(name: str) -> str:
    """Check the device before any work is done."""
    from smidgen.integrations.devices import find_device

    return str(find_device(name, "--device"))


Device = Annotated[
    str,
    Option(
        metavar="NAME",
        callback=_find_device,
        help="Device to compute on: cpu, cuda, cuda:1, mps; auto uses CUDA if available.",
    ),
]
Seed = Annotated[int, Option(help="Random seed.")]
Json = Annotated[
    Path | None, Option("--json", help="Also write the results to this JSON file.")
]
Overwrite = Annotated[bool, Option("--overwrite", help="Replace existing files.")]


def load_model(
    model: str, *, device: str = "cpu"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a classifier and its tokenizer."""
    from smidgen.integrations.huggingface import load_classifier

    return load_classifier(model, device=device)


def read_table(
    path: Path,
    text: str,
    text_pair: str | None,
    label: str | None,
    names: tuple[str, ...] | None = None,
) -> TextTable:
    """Read a data file; a column of digits is a column's number."""
    from smidgen.integrations.text import read_text

    return read_text(
        path,
        text=as_column(text),
        text_pair=None if text_pair is None else as_column(text_pair),
        label=None if label is None else as_column(label),
        label_names=names,
    )


def make_batches(
    table: TextTable,
    tokenizer: PreTrainedTokenizerBase,
    batch_size: int,
    length: TextLength,
    *,
    shuffle: bool = False,
    seed: int = 0,
) -> DataLoader[dict[str, Tensor]]:
    """Tokenize a table into batches."""
    from smidgen.integrations.huggingface import make_text_loader

    return make_text_loader(
        table,
        tokenizer,
        batch_size=batch_size,
        max_length=length.fit(tokenizer),
        shuffle=shuffle,
        seed=seed,
    )


def find_label_names(network: PreTrainedModel) -> tuple[str, ...] | None:
    """Return the model's names of its classes, or None if they are placeholders."""
    names = tuple(network.config.id2label[i] for i in range(network.config.num_labels))
    return None if names[0] == "LABEL_0" else names


def as_column(word: str) -> str | int:
    """Read the name of a column, or its number."""
    return int(word) if word.isdigit() else word
