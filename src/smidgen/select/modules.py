"""Whole affine layers, by the size of their operator norm or at random.

The paper's module selections: the operator norm is the largest singular value of W, layers
are ranked within attention, the MLPs or both. Random layers are drawn without replacement.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import nn

from smidgen.errors import ArgumentError
from smidgen.weights.affine import AffineLayer, require_coverage
from smidgen.weights.origin import Origin
from smidgen.weights.subset import Subset, Whole

Order = Literal["max", "min"]
LayerGroup = Literal["attention", "mlp", "all"]


def modules(
    model: nn.Module,
    *,
    count: int,
    by: Literal["operator_norm", "random"] = "operator_norm",
    order: Order = "max",
    group: LayerGroup = "all",
    seed: int = 0,
) -> Subset:
    """Choose whole affine layers.

    Args:
        model: The trained model.
        count: How many layers.
        by: "operator_norm" or "random".
        order: Largest norms first ("max") or smallest ("min").
        group: Which layers to choose from: "attention", "mlp" (all others) or "all".
        seed: Seed of a random choice.

    Returns:
        All weights and biases of the chosen layers.

    Raises:
        ArgumentError: If an argument has a value that is not allowed.
    """
    coverage = require_coverage(model)
    if group not in get_args(LayerGroup):
        raise ArgumentError(f"group must be one of {get_args(LayerGroup)}, got {group!r}.")
    layers = [layer for layer in coverage.layers if group in ("all", layer.group)]
    if not layers:
        raise ArgumentError(
            f"group must be one the model has layers of, got {group!r}. Use 'all'; "
            "smidgen.coverage(model) lists every layer with its group."
        )
    if not isinstance(count, int) or not 1 <= count <= len(layers):
        raise ArgumentError(
            f"count must be a whole number from 1 to {len(layers)} for group {group!r}, got "
            f"{count!r}. Try 1."
        )
    if by == "random":
        generator = torch.Generator().manual_seed(seed)
        permutation = torch.randperm(len(layers), generator=generator)
        chosen = [layers[i] for i in permutation[:count]]
        group_setting = {} if group == "all" else {"group": group}
        origin = Origin("random-modules", {"count": count, "seed": seed, **group_setting})
    elif by == "operator_norm" and order in ("max", "min"):
        sign = -1 if order == "max" else 1
        ranked = sorted(layers, key=lambda layer: sign * operator_norm(model, layer))
        chosen = ranked[:count]
        origin = Origin(f"{order}-{group}", {"count": count})
    else:
        raise ArgumentError(
            "by must be 'operator_norm' (with order 'max' or 'min') or 'random', got "
            f"{by!r} with order {order!r}."
        )
    parts = {name: Whole() for layer in chosen for name in layer.shapes}
    return Subset(coverage.universe, parts, origin)


def operator_norm(model: nn.Module, layer: AffineLayer) -> float:
    """Largest singular value of a layer's W."""
    matrix = layer.matrix(model)
    working = torch.promote_types(matrix.dtype, torch.float32)
    return float(torch.linalg.matrix_norm(matrix.to(working), 2))
