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
from smidgen.sparse.build import ActiveWeights
from smidgen.sparse.layers import matrix_shape
from smidgen.sparse.network import SparseNetwork
from smidgen.sparse.pattern import Pattern


def describe_layers(network: SparseNetwork) -> dict[str, Any]:
    """List what is not a tensor: layers, shapes, priors, budget."""
    layers = {
        name: {
            "shape": list(layer.shape),
            "prior": network.priors[name],
            "path": layer.path,
            "noise": layer.noise,
        }
        for name, layer in network.layers.items()
    }
    return {"budget": network.budget, "maps": layers}


def pack_tensors(network: SparseNetwork) -> dict[str, Tensor]:
    """List all tensors under names of their own: of layers, and of the rest."""
    tensors: dict[str, Tensor] = {}
    for name, layer in network.layers.items():
        tensors[f"means/{name}"] = layer.means
        if layer.log_scales is not None:
            tensors[f"log_scales/{name}"] = layer.log_scales
        if layer.pattern.indices is not None:
            tensors |= _pack_pattern(name, layer.pattern)
    for name, value in network.remaining_state().items():
        tensors[f"rest/{name}"] = value
    return {key: value.detach().cpu().contiguous() for key, value in tensors.items()}


def unpack_weights(
    tensors: Mapping[str, Tensor], header: Mapping[str, Any]
) -> dict[str, ActiveWeights]:
    """Read and check what `pack_tensors` and `describe_layers` wrote of every layer."""
    weights = {}
    for name, entry in header["maps"].items():
        rows, columns = matrix_shape(tuple(entry["shape"]))
        pattern = Pattern(rows, columns)
        if f"columns/{name}" in tensors:
            counts, inner = tensors[f"row_counts/{name}"], tensors[f"columns/{name}"]
            pattern = _unpack_pattern(rows, columns, counts, inner)
        means, log_scales = tensors[f"means/{name}"], tensors.get(f"log_scales/{name}")
        for values in (means, log_scales):
            if values is not None and values.shape != (pattern.count,):
                raise StoreError(
                    f"{name} must have {pattern.count} values, got {tuple(values.shape)}."
                )
        weights[name] = ActiveWeights(pattern, means, log_scales, float(entry["prior"]))
    return weights


def restore_rest(
    network: SparseNetwork, tensors: Mapping[str, Tensor], header: Mapping[str, Any]
) -> None:
    """Copy everything that is no value of a Gaussian layer into a network."""
    for name, layer in network.layers.items():
        entry = header["maps"][name]
        layer.path, layer.noise = entry["path"], entry["noise"]
    for name, value in network.remaining_state().items():
        stored = tensors[f"rest/{name}"]
        if stored.shape != value.shape:
            raise StoreError(
                f"{name} must have shape {tuple(value.shape)}, got {tuple(stored.shape)}."
            )
        with torch.no_grad():
            value.copy_(stored)


def _pack_pattern(name: str, pattern: Pattern) -> dict[str, Tensor]:
    """Entries in each row, and their columns in two bytes where those fit."""
    indices = pattern.list_indices().cpu()
    counts = torch.bincount(indices // pattern.columns, minlength=pattern.rows)
    columns = indices % pattern.columns
    if pattern.columns <= 2**16:
        columns = columns.to(torch.uint16)
    return {f"row_counts/{name}": counts.to(torch.int32), f"columns/{name}": columns}


def _unpack_pattern(rows: int, columns: int, counts: Tensor, inner: Tensor) -> Pattern:
    inner = inner.to(torch.int64)
    if counts.shape != (rows,) or int(counts.min()) < 0 or int(counts.sum()) != len(inner):
        raise StoreError(f"row counts must be {rows} that sum to {len(inner)}.")
    if len(inner) and (int(inner.min()) < 0 or int(inner.max()) >= columns):
        raise StoreError(f"columns must be in [0, {columns}).")
    starts = torch.arange(rows).repeat_interleave(counts.long()) * columns
    return Pattern(rows, columns, starts + inner)
