"""Operators as tensors of a file, and back, with every shape and number checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

import torch
from torch import Tensor

from smidgen.curvature.base import Operator
from smidgen.curvature.factors.operator import Kronecker
from smidgen.curvature.operators import JOINT, STRUCTURES, Isotropic
from smidgen.errors import StoreError
from smidgen.outputs.problem import Problem
from smidgen.runtime.artifact import require_finite
from smidgen.types import Shape
from smidgen.weights.blocks import LayerBlock

# What is beside the vectors, of a side that misses some.
_BESIDE = ("rests", "levels")


def pack_operators(operators: Mapping[str, Operator]) -> dict[str, Tensor]:
    """List the tensors of operators by field and name; what a side misses only if it does."""
    return {
        f"{part.name}/{name}": getattr(operator, part.name)
        for name, operator in operators.items()
        if not isinstance(operator, Isotropic)
        for part in fields(operator)
        if part.name not in _BESIDE or bool(getattr(operator, part.name).any())
    }


def unpack_operators(
    tensors: Mapping[str, Tensor],
    structure: str | Mapping[str, str],
    problem: Problem,
    blocks: Sequence[LayerBlock],
) -> dict[str, Operator]:
    """Put operators together, of one structure or of one for each layer."""
    names = [block.layer.name for block in blocks]
    if isinstance(structure, str):
        structure = dict.fromkeys(names, structure)
    for kind in structure.values():
        if kind not in STRUCTURES:
            raise StoreError(
                f"structure must be one of {', '.join(STRUCTURES)}, got {kind[:40]!r}"
            )
    if structure.keys() != set(names):
        raise StoreError("structure must name every layer of the subset once")
    kinds = {STRUCTURES[kind] for kind in structure.values()}
    joint = next((kind for kind in kinds if kind.joint), None)
    if joint is not None:
        if len(kinds) > 1:
            raise StoreError(f"structure {joint.structure!r} must be that of all layers")
        return {JOINT: _unpack(joint, tensors, JOINT, blocks, problem.device)}
    isotropic = Isotropic.of_blocks(problem, blocks)
    return {
        name: isotropic[name]
        if STRUCTURES[structure[name]] is Isotropic
        else _unpack(STRUCTURES[structure[name]], tensors, name, [block], problem.device)
        for name, block in zip(names, blocks, strict=True)
    }


def _unpack(
    kind: type[Operator],
    tensors: Mapping[str, Tensor],
    name: str,
    span: Sequence[LayerBlock],
    device: torch.device,
) -> Operator:
    """Read one operator of some layers."""
    parts: list[Tensor] = []
    for part, shape in zip(
        fields(kind), _find_shapes(kind, tensors, name, span), strict=True
    ):
        key = f"{part.name}/{name}"
        if part.name in _BESIDE and key not in tensors:
            # All vectors are there, or the others are of no curvature.
            parts.append(parts[0].new_zeros(2))
            continue
        stored = tensors[key]
        if tuple(stored.shape) != shape:
            raise StoreError(f"{key} must have shape {shape}, got {tuple(stored.shape)}")
        if not stored.is_floating_point() or (parts and stored.dtype != parts[0].dtype):
            raise StoreError(f"{key} must have the other parts' type, got {stored.dtype}")
        require_finite(key, stored)
        # All but eigenvectors are curvatures.
        if not part.name.endswith("vectors") and bool((stored < 0).any()):
            raise StoreError(f"{key} must be 0 or more, got {float(stored.min()):.3g}")
        parts.append(stored.to(device))
    return kind(*parts)


def _find_shapes(
    kind: type[Operator],
    tensors: Mapping[str, Tensor],
    name: str,
    span: Sequence[LayerBlock],
) -> tuple[Shape, ...]:
    """The shapes that the fields must have; of factors, for as many values as there are."""
    size = sum(block.size for block in span)
    rows, columns = span[0].row_count, span[0].column_count
    if kind is not Kronecker:
        return kind.shapes(rows, columns, size)
    ranks = [
        min(side, tensors[f"{part}_values/{name}"].numel())
        for part, side in (("row", rows), ("column", columns))
    ]
    return (rows, ranks[0]), (ranks[0],), (columns, ranks[1]), (ranks[1],), (2,), (2,)
