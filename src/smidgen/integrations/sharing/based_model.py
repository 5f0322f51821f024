"""The folder of a text model that is small because most of it is another's: a named base.

`base.json` names the base (a model on the Hub and its commit), with a hash of its weights;
beside it stand what was put on top (a PEFT adapter, a delta, whole tensors such as a new head)
and the tokenizer. Another base is refused by its hash, and every file here by its digest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from smidgen.errors import ArgumentError, StoreError
from smidgen.integrations.huggingface import load_tokenizer, load_with_head, silence
from smidgen.integrations.model_folder import find_model_folder
from smidgen.integrations.sharing.adapter_config import check_adapter_config
from smidgen.integrations.sharing.base_note import (
    COMMIT,
    SAVE_AGAIN,
    NamedBase,
    read_base_note,
    refuse_network_folder,
    write_base_note,
)
from smidgen.runtime.artifact import (
    reading,
    require_finite,
    require_like,
)
from smidgen.runtime.files import new_folder
from smidgen.runtime.guard import fingerprint
from smidgen.runtime.reading import (
    hash_file,
    read_safetensors,
    refuse_outside,
)
from smidgen.weights.delta import Delta

_ADAPTER, _DELTA, _TENSORS = "adapter", "delta.safetensors", "tensors.safetensors"
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
_MOST_WHOLE = 0.25
"""The largest part of a model that may be stored as whole tensors beside a base."""


def save_based_model(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    name: str,
    revision: str | None = None,
    base: str | Path | None = None,
    delta: Delta | None = None,
) -> NamedBase:
    """Write what a model has beyond its base.

    Args:
        model: The model; with a PEFT adapter or without.
        tokenizer: Its tokenizer.
        folder: Where to write it.
        name: The base: its name on the Hub, or its folder.
        revision: Its commit, tag or branch on the Hub; stored as the commit.
        base: A folder that holds the base, if it shall not be taken from the Hub.
        delta: What was added to the base.

    Returns:
        The base.

    Raises:
        ArgumentError: If the model has too little in common with the base.
    """
    place = find_model_folder(str(base or name), revision=None if base else revision)
    commit = _find_commit(place, revision)
    labels = int(model.config.num_labels)
    fresh = load_with_head(place, labels=labels)
    new = () if fresh.head == "last" else fresh.head
    noted = NamedBase(name, commit, fingerprint(fresh.model, without=new), labels, new)
    with new_folder(folder, overwrite=False) as work:
        with silence():
            tokenizer.save_pretrained(work)
            for path in work.glob("*.jinja"):
                path.unlink()  # A classifier has no chat.
            if _is_adapted(model):
                _save_adapter(model, work / _ADAPTER, noted)
        if delta is not None:
            delta.save(work / _DELTA)
        rest = _find_rest(model, _put_on(fresh.model, work, {}))
        if rest:
            save_file(rest, str(work / _TENSORS), metadata={"format": "smidgen"})
        write_base_note(noted, work)
    return noted


def load_based_model(
    folder: Path, *, base: str | Path | None = None, device: str = "cpu"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Open a base, and put on it what `save_based_model` wrote.

    Args:
        folder: What was written.
        base: A folder that holds the base; by default it comes from the Hub or its cache.
        device: Where the model goes.

    Returns:
        The model in evaluation mode, and its tokenizer.

    Raises:
        StoreError: If a file is damaged, or the base is another.
    """
    noted, files = read_base_note(folder)
    for file, digest in files.items():
        with reading(folder / file, "part of a model", SAVE_AGAIN):
            refuse_outside(folder / file, folder)
            if hash_file(folder / file) != digest:
                raise StoreError("it was damaged or edited, its digest is another")
    if base is None:
        refuse_network_folder(noted)
    place = find_model_folder(
        str(base or noted.name), revision=None if base else noted.revision
    )
    fresh = load_with_head(place, labels=noted.labels, device=device)
    found = fingerprint(fresh.model, without=noted.new)
    if found != noted.fingerprint:
        version = "" if noted.revision is None else f" at {noted.revision}"
        raise StoreError(
            f"{folder} was made on the base {noted.name}{version}, whose weights have the hash "
            f"{noted.fingerprint[:12]}…, and {place} has {found[:12]}…. Pass that base."
        )
    config = folder / _ADAPTER / _ADAPTER_FILES[0]
    if config.exists():
        check_adapter_config(config, base=noted.name, advice=SAVE_AGAIN)
    with reading(folder, "model on a named base", SAVE_AGAIN):
        model = _put_on(fresh.model, folder, files)
    return model.eval(), load_tokenizer(folder, fresh.model)


def _put_on(model: PreTrainedModel, folder: Path, files: Mapping[str, str]) -> Any:
    """Put on a base all that stands in a folder, but only files that are listed, if any are."""

    def has(name: str) -> bool:
        return name in files if files else (folder / name).is_file()

    adapted: Any = model
    if has(f"{_ADAPTER}/{_ADAPTER_FILES[0]}"):
        # Without these weights PEFT would look for a pickle.
        if not has(f"{_ADAPTER}/{_ADAPTER_FILES[1]}"):
            raise StoreError("its adapter has no safetensors weights")
        with silence(), torch.random.fork_rng(devices=[]):
            adapted = PeftModel.from_pretrained(model, str(folder / _ADAPTER))
    if has(_DELTA):
        Delta.load(folder / _DELTA).apply(adapted)
    if has(_TENSORS):
        tensors, _ = read_safetensors(folder / _TENSORS)
        known = adapted.state_dict()
        for name, value in tensors.items():
            if name not in known:
                raise StoreError(
                    f"its tensor {name[:80]!r} belongs to nothing in the model"
                )
            require_finite(name, require_like(name, value, known[name].cpu()))
            with torch.no_grad():
                known[name].copy_(value)
    return adapted


def _save_adapter(model: Any, folder: Path, base: NamedBase) -> None:
    """Write the one adapter of a model, naming its base as we do."""
    if list(model.peft_config) != ["default"]:
        raise ArgumentError(
            "model must have one adapter, named 'default', got "
            f"{', '.join(map(repr, model.peft_config))}. Merge or delete the others."
        )
    # "auto" would ask the Hub.
    model.save_pretrained(str(folder), save_embedding_layers=False)
    for path in folder.iterdir():
        if path.name not in _ADAPTER_FILES:
            path.unlink()
    config = folder / _ADAPTER_FILES[0]
    values = json.loads(config.read_text(encoding="utf-8"))
    values |= {"base_model_name_or_path": base.name, "revision": base.revision}
    config.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _find_rest(model: Any, rebuilt: Any) -> dict[str, Tensor]:
    """Find the tensors of a model that are not those of what was put together again."""
    own, found = model.state_dict(), rebuilt.state_dict()
    if own.keys() != found.keys():
        raise ArgumentError(
            "model must have the layers of its base, got a difference in "
            f"{min(own.keys() ^ found.keys())!r}. Name the base it was made of."
        )
    rest: dict[str, Tensor] = {}
    for name, value in own.items():
        here, there = value.detach().cpu(), found[name].detach().cpu()
        if here.dtype != there.dtype or not torch.equal(here, there):
            rest[name] = here.clone().contiguous()
    whole = sum(value.nbytes for value in own.values())
    if sum(value.nbytes for value in rest.values()) > _MOST_WHOLE * whole:
        raise ArgumentError(
            f"model must be its base but for an adapter, a delta or a head, got {len(rest)} "
            f"other tensors of {len(own)}. Leave base out to store the whole model."
        )
    return rest


def _is_adapted(model: object) -> bool:
    return isinstance(model, PeftModel)


def _find_commit(place: Path, revision: str | None) -> str | None:
    """Find the commit of a folder of the Hub's cache; else the revision, if it is a commit."""
    if place.parent.name == "snapshots":
        return place.name
    return revision if revision is not None and COMMIT.fullmatch(revision) else None
