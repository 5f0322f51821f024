"""The folder of a transformers model: here, or fetched from the hub.

Its files are read before transformers sees them: no pickle, also not by way of an index;
no code or kernel that a config asks for, unless the caller does; no link out of the folder;
no weights but those under the usual names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from smidgen.errors import ArgumentError, StoreError, reason, system_reason
from smidgen.runtime.artifact import MALFORMED
from smidgen.runtime.files import recover
from smidgen.runtime.reading import (
    convert_json,
    open_regular,
    parse_object,
    read_whole,
    refuse_outside,
)

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
"""A folder with loadable weights has one of these files."""

CONFIG = "config.json"
"""What every model's folder has."""

UNLOADABLE = (*MALFORMED, ImportError, SafetensorError, StrictDataclassError)
"""What transformers raises on a folder that it cannot load."""

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
_INDEX = WEIGHTS[1]
_ADAPTER = "adapter_config.json"
TOKENIZER_SETTINGS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""What transformers reads of a tokenizer besides its vocabulary."""
# What transformers reads of a folder with Python's own JSON, which has no limit of depth.
_READ = (CONFIG, _INDEX, *TOKENIZER_SETTINGS, "generation_config.json")
# Ways to compute that need nothing from elsewhere; others name a kernel to be fetched.
_BUILT_IN = (None, "eager", "sdpa", "flex_attention")
_KERNEL_KEYS = ("implementation", "implementation_internal")
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def find_model_folder(
    name: str, *, trust_remote_code: bool = False, revision: str | None = None
) -> Path:
    """Find or fetch a model's folder, with weights and a tokenizer that can be loaded."""
    folder = Path(name).expanduser()
    recover(folder)
    if not os.path.isdir(folder):  # not Path's, which raises on names that are too long
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
                revision=revision,
                allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model"],
                ignore_patterns=["*/*"],
            ),
        )
    _check_files(folder, name)
    for file in (*_READ, WEIGHTS[0]):
        if (folder / file).exists():
            check_model_file(folder / file, trust_remote_code=trust_remote_code)
    return folder


def find_config_file(name: str) -> Path:
    """Find a model's config.json, or fetch it alone; weights need not be there."""
    path = Path(name).expanduser()
    if os.path.isdir(path):
        return path / CONFIG
    if os.path.isfile(path) or not _HUB_ID.fullmatch(name):
        return path
    return _fetch(name, lambda: huggingface_hub.hf_hub_download(name, CONFIG))


def check_model_file(path: Path, *, trust_remote_code: bool = False) -> None:
    """Refuse a JSON file of a model's folder that is damaged, or leads out of the folder."""
    try:
        refuse_outside(path, path.parent)
        if path.name == WEIGHTS[0]:
            with open_regular(path):
                return
        # A config may hold infinity: a limit that is none.
        found = parse_object(read_whole(path), finite=False)
        if path.name == _INDEX:
            _check_index(path, found)
            return
        _refuse_other_weights(found)
        if not trust_remote_code:
            _refuse_code(found)
    except MALFORMED as error:
        said = system_reason(error) if isinstance(error, OSError) else reason(error)
        raise ArgumentError(
            f"model must be a folder of plain JSON and safetensors, got {str(path)!r}: "
            f"{said}. Save the model again, or give another."
        ) from error


def _check_index(path: Path, index: dict[str, Any]) -> None:
    """Refuse shards that are not safetensors files of the same folder."""
    for shard in set(
        convert_json(index["weight_map"], dict[str, str], "weight_map").values()
    ):
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise StoreError(
                f"it names {shard[:80]!r}, which is no safetensors file of this folder"
            )
        refuse_outside(path.parent / shard, path.parent)
        with open_regular(path.parent / shard):
            pass


def _refuse_other_weights(config: dict[str, Any]) -> None:
    """Refuse a config that has transformers load a file of its choice, of any kind."""
    chosen = config.get("transformers_weights")
    if chosen is not None and chosen not in WEIGHTS:
        raise StoreError(
            f"it asks for the weights {str(chosen)[:80]!r} (transformers_weights), which "
            f"must be {WEIGHTS[0]}"
        )


def _refuse_code(config: Any) -> None:
    """Refuse a config that asks for code of its own, or for a kernel from the hub."""
    asked = "Pass trust_remote_code=True to load_classifier if you trust its author"
    for name, value in config.items() if isinstance(config, dict) else enumerate(config):
        if name == "auto_map" and value:
            raise StoreError(f"it asks for code of its own (auto_map). {asked}")
        if isinstance(name, str) and name.strip("_").endswith(_KERNEL_KEYS):
            kernels = list(value.values()) if isinstance(value, dict) else [value]
            for kernel in kernels:
                if kernel not in _BUILT_IN:
                    raise StoreError(
                        f"it asks for the kernel {str(kernel)[:80]!r}. {asked}"
                    )
        if isinstance(value, dict | list):
            _refuse_code(value)


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
    if (folder / _ADAPTER).exists():
        raise ArgumentError(
            f"model must be a model of its own, got {name!r} with an {_ADAPTER}, which "
            "names another to be loaded in its place. Merge the adapter and save it again."
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
