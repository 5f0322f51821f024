"""The folder of a plain model, for tables and images: how to build it, and its weights."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from smidgen.errors import StoreError
from smidgen.integrations.sharing.layer_stack import LayerStack
from smidgen.runtime.artifact import (
    fill_folder,
    read_folder,
    reading,
    require_finite,
    require_like,
    require_schema,
)
from smidgen.runtime.files import new_folder, recover, refuse_taken
from smidgen.runtime.reading import make_from_json
from smidgen.runtime.writing.claim import RUN_NOTE
from smidgen.sparse.architectures import PlainNetwork

_SCHEMA = 1
_CONFIG, _TENSORS = "config.json", "model.safetensors"
_WHAT, _ADVICE = "plain model", "Train it again with 'smidgen run'."


def save_plain_model(
    model: nn.Module,
    network: PlainNetwork | LayerStack,
    folder: Path,
    *,
    overwrite: bool = False,
) -> Path:
    """Write how to build a model, and its weights and buffers, whole or not at all.

    Args:
        model: The model that `network` builds.
        network: How it is built.
        folder: Where to write it.
        overwrite: Replace a plain model that is there.

    Returns:
        The folder.
    """
    refuse_taken(
        folder,
        overwrite=overwrite,
        needed=_TENSORS,
        written=(_CONFIG, _TENSORS, RUN_NOTE),
        what=_WHAT,
    )
    with new_folder(folder, overwrite=overwrite) as work:
        built: dict[str, Any] = (
            {"layers": network.to_json()}
            if isinstance(network, LayerStack)
            else {"network": asdict(network)}
        )
        config = {"schema": _SCHEMA, **built}
        fill_folder(work / _CONFIG, work / _TENSORS, config, model.state_dict())
    return folder


def load_plain_model(folder: Path) -> nn.Module:
    """Read what `save_plain_model` wrote.

    Args:
        folder: The folder.

    Returns:
        The model, in evaluation mode.

    Raises:
        StoreError: If it is missing or damaged.
    """
    recover(folder)
    tensors, config = read_folder(
        folder / _CONFIG, folder / _TENSORS, what=_WHAT, advice=_ADVICE
    )
    require_schema(folder, config.get("schema"), _SCHEMA, _WHAT)
    with reading(folder, _WHAT, _ADVICE):
        # Without memory for weights: a file may say that they are of any size.
        with torch.device("meta"):
            model = _find_network(config).build()
        expected = model.state_dict()
        if expected.keys() != tensors.keys():
            raise StoreError("its weights are not those of its architecture")
        for name, tensor in tensors.items():
            require_finite(name, require_like(name, tensor, expected[name]))
        model.load_state_dict(tensors, assign=True)
    return model.eval().requires_grad_()


def _find_network(config: dict[str, Any]) -> PlainNetwork | LayerStack:
    if "layers" in config:
        return LayerStack.from_json(config["layers"])
    network: PlainNetwork = make_from_json(PlainNetwork, config["network"])
    return network
