"""A sparse network as tensors and a header, and back.

Of each layer there are k means, k log-scales and k columns (two bytes each where they fit)
with a count for each row; of the rest of the model, its parameters and buffers. Reading
checks shapes and bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from smidgen.errors import StoreError
from smidgen.sparse.build import Weights
from smidgen.sparse.layers import matrix_of
from smidgen.sparse.network import SparseNetwork
from smidgen.sparse.pattern import Pattern

_SHORT = 2**16


def header_of(network: SparseNetwork) -> dict[str, Any]:
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


def tensors_of(network: SparseNetwork) -> dict[str, Tensor]:
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


def weights_of(
    tensors: Mapping[str, Tensor], header: Mapping[str, Any]
) -> dict[str, Weights]:
    """Read the active weights of every layer, checked.

    Args:
        tensors: What `tensors_of` listed.
        header: What `header_of` listed.

    Returns:
        Weights by layer, on the CPU.

    Raises:
        StoreError: If a tensor has another shape than it must.
    """
    found = {}
    for name, entry in header["maps"].items():
        rows, columns = matrix_of(tuple(entry["shape"]))
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
        found[name] = Weights(pattern, means, logs, float(entry["prior"]))
    return found


def fill(
    network: SparseNetwork, tensors: Mapping[str, Tensor], header: Mapping[str, Any]
) -> None:
    """Copy all that is not a value of a Gaussian layer into a network.

    Args:
        network: The network.
        tensors: What `tensors_of` listed.
        header: What `header_of` listed.

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
    indices = pattern.listed().cpu()
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
