"""The folder of a transformers model: here, or fetched from the hub. No pickle."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import huggingface_hub

from smidgen.errors import ArgumentError, reason

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
"""A folder with loadable weights has one of these files."""

CONFIG = "config.json"
"""What every model's folder has."""

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
# Without one of these transformers silently makes up an empty vocabulary.
_TOKENIZERS = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
)
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def find_model_folder(name: str) -> Path:
    """Find or fetch a model's folder, with weights and a tokenizer that can be loaded."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if not _HUB_ID.fullmatch(name):
            raise ArgumentError(
                f"model must be a folder that exists, got {name!r}. Check the spelling."
            )
        # Fetching first keeps pickles off the disk, and fails at once when offline
        # where transformers would try again for half a minute.
        folder = _fetch(
            name,
            lambda: huggingface_hub.snapshot_download(
                name,
                allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model"],
                ignore_patterns=["*/*"],
            ),
        )
    _check_files(folder, name)
    return folder


def find_config_file(name: str) -> Path:
    """Find a model's config.json, or fetch it alone; weights need not be there."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path / CONFIG
    if path.is_file() or not _HUB_ID.fullmatch(name):
        return path
    return _fetch(name, lambda: huggingface_hub.hf_hub_download(name, CONFIG))


def _fetch(name: str, fetch: Callable[[], str]) -> Path:
    """Fetch files from the hub, or say in one sentence why that failed."""
    try:
        return Path(fetch())
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"model must be a folder that exists or a model on the Hugging Face hub, "
            f"got {name!r}: there is no such folder here, and the hub sent none "
            f"({reason(error)}). Check the spelling, or make it first with 'smidgen "
            "finetune'."
        ) from error


def _check_files(folder: Path, name: str) -> None:
    if not (folder / CONFIG).is_file():
        # What 'smidgen bayestune' writes has its model one folder further down.
        inside = folder / "model"
        hint = "a folder made by save_pretrained"
        if (inside / CONFIG).is_file():
            hint = f"{inside}, which is one"
        raise ArgumentError(
            f"model must be a transformers model, got {name!r} without a config.json. "
            f"Give {hint}."
        )
    if not any((folder / file).is_file() for file in WEIGHTS):
        pickled = any(any(folder.glob(pattern)) for pattern in _PICKLES)
        fault = "with pickled weights only" if pickled else "without model.safetensors"
        raise ArgumentError(
            f"model must hold safetensors weights, got {name!r} {fault}. "
            "Convert the weights where you trust them and save them again."
        )
    if not any((folder / file).is_file() for file in _TOKENIZERS):
        raise ArgumentError(
            f"model must hold a tokenizer, got {name!r} without one. Save it "
            "there with tokenizer.save_pretrained."
        )
