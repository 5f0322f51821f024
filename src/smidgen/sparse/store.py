"""A sparse posterior is a folder: `config.json`, `sparse.safetensors`, `README.md`.

A network made from a `PlainNetwork` says so in its config and is built again from that.

Of each layer it holds k means, k log-scales and k columns (two bytes each where they fit)
with a count for each row; of the rest of the model, its parameters and buffers. No
pickle; written whole or not at all; a load checks hash, shapes and bounds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from smidgen.errors import SmidgenError, StoreError
from smidgen.outputs.likelihood import describe, from_description
from smidgen.runtime.artifact import HASH, hash_file, read_config, read_tensors
from smidgen.runtime.files import new_folder, refuse_taken
from smidgen.sparse.architectures import PlainNetwork
from smidgen.sparse.build import ActiveWeights, assemble_network
from smidgen.sparse.layers import matrix_shape
from smidgen.sparse.network import SparseNetwork
from smidgen.sparse.pattern import Pattern

SCHEMA = 1
_CONFIG, _TENSORS, _CARD = "config.json", "sparse.safetensors", "README.md"
_SHORT = 2**16


def save_sparse(
    network: SparseNetwork,
    folder: str | Path,
    *,
    plain: PlainNetwork | None = None,
    about: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a sparse network to a folder, whole or not at all.

    Args:
        network: The network.
        folder: Where to; it must not exist yet, or `overwrite` must be given.
        plain: The plain model it was made from, so that a load needs none; that of the
            network it was loaded as, if left out.
        about: What else to note, as JSON takes it: seed, data.
        overwrite: Replace a sparse network that is there already.

    Returns:
        The folder.

    Raises:
        StoreError: If something is there already and may not be replaced.
    """  # noqa: DOC502
    folder = Path(folder)
    plain = plain or network.plain
    refuse_taken_network(folder, overwrite=overwrite)
    with new_folder(folder) as work:
        save_file(
            pack_tensors(network), str(work / _TENSORS), metadata={"format": "smidgen"}
        )
        config = {
            "schema": SCHEMA,
            "method": "ssvi",
            HASH: hash_file(work / _TENSORS),
            "model": None if plain is None else asdict(plain),
            "likelihood": network.likelihood and describe(network.likelihood),
            "about": dict(about or {}),
            **describe_layers(network),
        }
        text = json.dumps(config, indent=1, allow_nan=False) + "\n"
        (work / _CONFIG).write_text(text, encoding="utf-8")
        card = _card(network, whole=plain is not None)
        (work / _CARD).write_text(card, encoding="utf-8")
    return folder


def load_sparse(folder: str | Path, model: nn.Module | None = None) -> SparseNetwork:
    """Read a sparse network into a copy of a model of the same shape.

    Args:
        folder: What `save_sparse` or `smidgen train-sparse` wrote.
        model: The model it was made from, with any weights; never changed. Not needed
            for what `smidgen train-sparse` wrote: that is built again, and takes raw
            inputs.

    Returns:
        The network, in evaluation mode.

    Raises:
        StoreError: If the folder is missing, damaged, or of another model.
    """
    folder = Path(folder)
    config = read_config(
        folder / _CONFIG,
        schema=SCHEMA,
        what="sparse network",
        made_by="smidgen.sparse.save_sparse or 'smidgen train-sparse'",
    )
    tensors = read_tensors(folder / _TENSORS, config, what="sparse network")
    if model is None and config.get("model") is None:
        raise StoreError(
            f"model must be given: {folder} does not say what its network was made from. "
            "Pass a model of the same shape, with any weights."
        )
    try:
        plain = None
        if model is None:
            plain = PlainNetwork(**config["model"])
            model = plain.build()
        network = assemble_network(
            model,
            unpack_weights(tensors, config),
            budget=config["budget"],
            generator=torch.Generator().manual_seed(0),
            plain=plain,
        )
        restore_rest(network, tensors, config)
        # Folders of before had none.
        if config.get("likelihood") is not None:
            network.likelihood = from_description(config["likelihood"])
        return network.eval()
    except StoreError:
        raise
    except (SmidgenError, SafetensorError) as error:
        raise StoreError(f"{folder} does not fit this model: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise StoreError(
            f"{folder} does not fit this model or is incomplete: {error!r}."
        ) from error


def refuse_taken_network(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds something, unless it is a network to be replaced."""
    refuse_taken(
        folder,
        overwrite=overwrite,
        needed=_TENSORS,
        written=(_CONFIG, _TENSORS, _CARD),
        what="sparse network",
    )


def describe_layers(network: SparseNetwork) -> dict[str, Any]:
    """List what is not a tensor: layers, shapes, priors, budget."""
    layers = {
        name: {
            "shape": list(part.shape),
            "prior": network.priors[name],
            "path": part.path,
            "noise": part.noise,
        }
        for name, part in network.layers.items()
    }
    return {"budget": network.budget, "maps": layers}


def pack_tensors(network: SparseNetwork) -> dict[str, Tensor]:
    """List all tensors under names of their own: of layers, and of the rest."""
    found: dict[str, Tensor] = {}
    for name, part in network.layers.items():
        found[f"means/{name}"] = part.means
        if part.log_scales is not None:
            found[f"log_scales/{name}"] = part.log_scales
        if part.pattern.indices is not None:
            counts, columns = _packed(part.pattern)
            found[f"row_counts/{name}"], found[f"columns/{name}"] = counts, columns
    for name, value in network.rest().items():
        found[f"rest/{name}"] = value
    return {key: value.detach().cpu().contiguous() for key, value in found.items()}


def unpack_weights(
    tensors: Mapping[str, Tensor], header: Mapping[str, Any]
) -> dict[str, ActiveWeights]:
    """Read the active weights of every layer, checked.

    Args:
        tensors: What `pack_tensors` listed.
        header: What `describe_layers` listed.

    Returns:
        Weights by layer, on the CPU.

    Raises:
        StoreError: If a tensor has another shape than it must.
    """
    found = {}
    for name, entry in header["maps"].items():
        rows, columns = matrix_shape(tuple(entry["shape"]))
        pattern = Pattern(rows, columns)
        if f"columns/{name}" in tensors:
            counts, inner = tensors[f"row_counts/{name}"], tensors[f"columns/{name}"]
            pattern = _unpacked(rows, columns, counts, inner)
        means, logs = tensors[f"means/{name}"], tensors.get(f"log_scales/{name}")
        for each in (means, logs):
            if each is not None and each.shape != (pattern.count,):
                raise StoreError(
                    f"{name} must have {pattern.count} values, got {tuple(each.shape)}."
                )
        found[name] = ActiveWeights(pattern, means, logs, float(entry["prior"]))
    return found


def restore_rest(
    network: SparseNetwork, tensors: Mapping[str, Tensor], header: Mapping[str, Any]
) -> None:
    """Copy all that is not a value of a Gaussian layer into a network.

    Args:
        network: The network.
        tensors: What `pack_tensors` listed.
        header: What `describe_layers` listed.

    Raises:
        StoreError: If a tensor has another shape than it must.
    """
    for name, part in network.layers.items():
        part.path, part.noise = header["maps"][name]["path"], header["maps"][name]["noise"]
    for name, value in network.rest().items():
        stored = tensors[f"rest/{name}"]
        if stored.shape != value.shape:
            raise StoreError(
                f"{name} must have shape {tuple(value.shape)}, got {tuple(stored.shape)}."
            )
        with torch.no_grad():
            value.copy_(stored)


def _packed(pattern: Pattern) -> tuple[Tensor, Tensor]:
    """Entries in each row, and their columns in two bytes where those fit."""
    indices = pattern.list_indices().cpu()
    counts = torch.bincount(indices // pattern.columns, minlength=pattern.rows)
    columns = indices % pattern.columns
    if pattern.columns <= _SHORT:
        columns = columns.to(torch.uint16)
    return counts.to(torch.int32), columns


def _unpacked(rows: int, columns: int, counts: Tensor, inner: Tensor) -> Pattern:
    inner = inner.to(torch.int64)
    if counts.shape != (rows,) or int(counts.min()) < 0 or int(counts.sum()) != len(inner):
        raise StoreError(f"row counts must be {rows} that sum to {len(inner)}.")
    if len(inner) and (int(inner.min()) < 0 or int(inner.max()) >= columns):
        raise StoreError(f"columns must be in [0, {columns}).")
    starts = torch.arange(rows).repeat_interleave(counts.long()) * columns
    return Pattern(rows, columns, starts + inner)


def _card(network: SparseNetwork, *, whole: bool) -> str:
    kind = "Gaussian" if network.stochastic else "deterministic"
    call = 'load_sparse("this-folder")  # takes raw inputs'
    if not whole:
        call = 'load_sparse("this-folder", model)  # a model of the same shape, any weights'
    return f"""---
library_name: smidgen
tags: [bayesian, variational-inference, sparse]
---
# A sparse network of {network.count:,} {kind} weights

{network.count:,} of {network.total:,} weights of {len(network.layers)} layers are active
({network.density:.3%}); all others are exactly zero.

```python
from smidgen.sparse import load_sparse

network = {call}
state = network.densified()  # a plain state dict of the means
```
"""
