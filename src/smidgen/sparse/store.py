"""A sparse network as tensors and a header, and back.

Of each layer there are k means, k log-scales and k columns (two bytes each where they fit)
with a count for each row; of the rest of the model, its parameters and buffers. The header
says of each layer whether it has scales and how many weights are active, so that a tensor
that is lost is missed. Reading checks shapes, types, bounds and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor

from smidgen.errors import StoreError
from smidgen.runtime.artifact import require_finite, require_like
from smidgen.runtime.reading import is_count, make_from_json
from smidgen.sparse.build import ActiveWeights
from smidgen.sparse.layers import NoiseKind, matrix_shape
from smidgen.sparse.matmul import Path
from smidgen.sparse.network import SparseNetwork
from smidgen.sparse.pattern import Pattern


@dataclass(frozen=True)
class StoredLayer:
    """What is no tensor of a sparse layer; `active` is None where all weights are."""

    shape: tuple[int, ...]
    prior: float
    path: Path | Literal["auto"]
    noise: NoiseKind
    scales: bool
    active: int | None

    def __post_init__(self) -> None:
        positive = all(is_count(size) and size > 0 for size in self.shape)
        if len(self.shape) not in (2, 4) or not positive or not 0 < self.prior < inf:
            raise StoreError("a sparse layer has an impossible shape or prior")
        if self.noise != "none" and not self.scales:
            raise StoreError("a sparse layer without scales cannot have noise")


def describe_layers(network: SparseNetwork) -> dict[str, Any]:
    """List what is not a tensor: layers, shapes, priors, budget."""
    layers = {}
    for name, layer in network.layers.items():
        active = None if layer.pattern.indices is None else layer.pattern.count
        scales = layer.log_scales is not None
        stored = StoredLayer(
            layer.shape, network.priors[name], layer.path, layer.noise, scales, active
        )
        layers[name] = {**asdict(stored), "shape": list(layer.shape)}
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
        stored = make_from_json(StoredLayer, entry)
        pattern = Pattern(*matrix_shape(stored.shape))
        if stored.active is not None:
            counts, inner = tensors[f"row_counts/{name}"], tensors[f"columns/{name}"]
            if len(inner) != stored.active:
                raise StoreError(
                    f"{name} must have {stored.active} active weights, got {len(inner)}"
                )
            pattern = _unpack_pattern(pattern.rows, pattern.columns, counts, inner)
        means = tensors[f"means/{name}"]
        log_scales = tensors[f"log_scales/{name}"] if stored.scales else None
        for values in (means, log_scales):
            if values is None:
                continue
            if values.shape != (pattern.count,) or not values.is_floating_point():
                raise StoreError(
                    f"{name} must have {pattern.count} values, got {tuple(values.shape)} of "
                    f"{values.dtype}"
                )
            require_finite(name, values)
        if log_scales is not None:
            require_like(f"log_scales/{name}", log_scales, means)
        weights[name] = ActiveWeights(pattern, means, log_scales, stored.prior)
    return weights


def restore_rest(
    network: SparseNetwork, tensors: Mapping[str, Tensor], header: Mapping[str, Any]
) -> None:
    """Copy everything that is no value of a Gaussian layer into a network."""
    for name, layer in network.layers.items():
        entry = header["maps"][name]
        layer.path, layer.noise = entry["path"], entry["noise"]
    for name, value in network.remaining_state().items():
        stored = require_like(f"rest/{name}", tensors[f"rest/{name}"], value)
        # Only a tensor that is infinite in the model may be so here: a mask of −∞.
        if not bool(value.isinf().any()):
            require_finite(f"rest/{name}", stored)
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
    whole = (torch.uint16, torch.int32, torch.int64)
    if inner.dtype not in whole or inner.dim() != 1 or counts.dtype != torch.int32:
        raise StoreError("the columns and row counts of a layer must be whole numbers")
    inner, counts = inner.long(), counts.long()
    if counts.shape != (rows,) or int(counts.min()) < 0 or int(counts.sum()) != len(inner):
        raise StoreError(f"row counts must be {rows} that sum to {len(inner)}")
    if len(inner) and (int(inner.min()) < 0 or int(inner.max()) >= columns):
        raise StoreError(f"columns must be in [0, {columns})")
    starts = torch.arange(rows).repeat_interleave(counts) * columns
    return Pattern(rows, columns, starts + inner)
