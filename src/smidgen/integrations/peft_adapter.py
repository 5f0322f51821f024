"""A delta as a PEFT adapter, where PEFT can hold it.

PEFT's SHiRA keeps single entries of `nn.Linear` weights, r·(m + n) of them for an m × n
weight, and `modules_to_save` keeps whole modules. So a delta of such weights and a new head
goes in, filled up with zeros; biases, embeddings and LayerNorms do not. PEFT rounds the
difference to the weight's type before it adds it, `Delta.apply` the sum: in fp32 and above
that is the same number, in bf16 the last bit may differ.
"""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, ShiraConfig, get_peft_model
from torch import Tensor, nn

from smidgen.errors import ArgumentError
from smidgen.runtime.files import new_folder, refuse_taken
from smidgen.runtime.keeping.structure import unwrap
from smidgen.weights.delta import Delta


def save_peft(delta: Delta, model: nn.Module, folder: str | Path) -> Path:
    """Write a delta as a SHiRA adapter that `PeftModel.from_pretrained` loads.

    Args:
        delta: The delta.
        model: Its base model; it stays as it is.
        folder: Where the adapter goes.

    Returns:
        The folder.
    """
    folder = Path(folder)
    refuse_taken(
        folder,
        overwrite=True,
        needed="adapter_model.safetensors",
        written=("adapter_*", "README.md"),
        what="adapter",
    )
    adapted = make_peft_model(delta, model)
    with new_folder(folder, overwrite=True) as work:
        adapted.save_pretrained(str(work))
    return folder


def make_peft_model(delta: Delta, model: nn.Module) -> PeftModel:
    """Put a delta on a copy of its base model as a SHiRA adapter, if PEFT can hold it."""
    copy = deepcopy(unwrap(model))
    # Applied and removed: that checks that this is the base model.
    delta.apply(copy).remove()
    names = {name: _find_linear(copy, name) for name in delta.subset.parts}
    sizes = delta.subset.sizes()
    # PEFT keeps rank · (m + n) entries of an m × n weight.
    ranks = (-(-sizes[name] // sum(layer.weight.shape)) for name, layer in names.items())
    rank = max([1, *ranks])
    dtype = torch.promote_types(delta.difference.dtype, torch.float32)
    pieces = delta.difference.to(dtype).split(list(sizes.values()))
    masks: dict[int, Tensor] = {}
    values: dict[str, Tensor] = {}
    for (name, layer), piece in zip(names.items(), pieces, strict=True):
        mask, entries = _fill_mask(layer, delta.subset.indices(name), piece, rank, name)
        masks[id(layer)], values[name.removesuffix(".weight")] = mask, entries
    config = ShiraConfig(
        r=rank,
        # PEFT matches a pattern in full, but a list by suffix: query would match x.query.
        target_modules="|".join(map(re.escape, values)),
        modules_to_save=_find_replaced_modules(copy, delta) or None,
    )
    config.mask_fn = lambda layer, *_, **__: masks[id(layer)].to(layer.weight)
    adapted = get_peft_model(copy, config)
    base: Any = adapted.base_model.model
    layers: dict[str, Any] = dict(base.named_modules())
    with torch.no_grad():
        for name, value in values.items():
            layers[name].shira_weight["default"].copy_(value)
        for name, value in delta.replaced.items():
            module, _, field = name.rpartition(".")
            saved = layers[module].modules_to_save["default"]
            getattr(saved, field).copy_(value)
    return adapted


def _find_linear(model: nn.Module, name: str) -> nn.Linear:
    module, _, field = name.rpartition(".")
    layer = model.get_submodule(module)
    if field != "weight" or not isinstance(layer, nn.Linear):
        raise ArgumentError(
            f"delta must hold weights of nn.Linear only to go into PEFT, got {name!r} of a "
            f"{type(layer).__name__}. Save it with Delta.save, or tune weights only: give "
            "select.bayestune the scores of those."
        )
    return layer


def _fill_mask(
    layer: nn.Linear, indices: Tensor, piece: Tensor, rank: int, name: str
) -> tuple[Tensor, Tensor]:
    """The mask that PEFT needs, of r·(m + n) entries, and their values in its order."""
    total, room = layer.weight.numel(), rank * sum(layer.weight.shape)
    if room > total:
        raise ArgumentError(
            f"delta must leave PEFT room for {room} entries in every weight it touches, "
            f"got {name!r} with {total}. Save it with Delta.save."
        )
    mask = torch.zeros(total)
    mask[indices] = 1
    rest = (mask == 0).nonzero().flatten()[: room - indices.numel()]
    mask[rest] = 1
    values = torch.zeros(total, dtype=piece.dtype)
    values[indices] = piece
    return mask.view_as(layer.weight), values[mask.bool()]


def _find_replaced_modules(model: nn.Module, delta: Delta) -> list[str]:
    """Modules whose every parameter is replaced."""
    modules = sorted({name.rpartition(".")[0] for name in delta.replaced})
    paths = [path for path, _ in model.named_modules()]
    for module in modules:
        alike = [path for path in paths if path.endswith(module) and path not in modules]
        if alike:
            raise ArgumentError(
                f"delta must replace modules that PEFT can tell by the end of their name, "
                f"got {module!r} beside {alike[0]!r}. Save it with Delta.save."
            )
        for field, _ in model.get_submodule(module).named_parameters():
            if f"{module}.{field}" not in delta.replaced:
                raise ArgumentError(
                    f"delta must replace whole modules to go into PEFT, got {module!r} "
                    f"without its {field}. Save it with Delta.save."
                )
    return modules
