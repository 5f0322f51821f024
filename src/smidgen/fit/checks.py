"""What is refused or left out before a fit, and mentioned after it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import nn

from smidgen.curvature.accumulate import Curvatures
from smidgen.curvature.batch_check import find_mixing_layers
from smidgen.curvature.operators import STRUCTURES
from smidgen.errors import ArgumentError, DataError, SmidgenWarning, StructureError
from smidgen.outputs.problem import SettledProblem
from smidgen.types import Batch
from smidgen.weights.blocks import LayerBlock


def check_fit(
    model: nn.Module, structure: str, precision: float, blocks: Sequence[LayerBlock]
) -> None:
    """Refuse before any pass what no pass could fit.

    Args:
        model: The model; it is only read.
        structure: How the curvature is to be kept.
        precision: The prior precision.
        blocks: The chosen weights of each layer.

    Raises:
        ArgumentError: If the precision is no positive number.
    """
    if not 0 < precision < float("inf"):
        raise ArgumentError(f"precision must be > 0 and finite, got {precision}.")
    _refuse_scattered(structure, blocks)
    _refuse_bad_weights(model)


def drop_mixing_layers(
    problem: SettledProblem, first: Batch, blocks: Sequence[LayerBlock]
) -> tuple[LayerBlock, ...]:
    """Leave layers out whose rows cannot be told apart by example, and say so.

    Args:
        problem: The problem, with its likelihood settled.
        first: A batch to look at.
        blocks: The chosen weights of each layer.

    Returns:
        The blocks of all other layers.

    Raises:
        StructureError: If none is left.
    """
    reasons = find_mixing_layers(problem, first, blocks)
    kept = tuple(block for block in blocks if block.layer.name not in reasons)
    if reasons:
        first_reason = next(iter(reasons.values()))
        if not kept:
            raise StructureError(f"no chosen layer can be treated: {first_reason}.")
        warnings.warn(
            f"{len(reasons)} chosen layers stay deterministic: "
            f"{', '.join(list(reasons)[:3])}. {first_reason}",
            SmidgenWarning,
            stacklevel=3,
        )
    return kept


def warn_of_idle_layers(curvatures: Curvatures) -> None:
    """Warn about chosen layers that never ran."""
    if curvatures.idle:
        warnings.warn(
            f"{len(curvatures.idle)} chosen layers never ran, so their weights keep the "
            f"prior: {', '.join(curvatures.idle[:3])}.",
            SmidgenWarning,
            stacklevel=3,
        )


def _refuse_scattered(structure: str, blocks: Sequence[LayerBlock]) -> None:
    """Refuse single entries where a structure needs rows × columns."""
    scattered = [block for block in blocks if block.entries is not None]
    if not STRUCTURES[structure].scattered and scattered:
        able = [name for name, kind in STRUCTURES.items() if kind.scattered]
        first = scattered[0]
        raise StructureError(
            f"structure {structure!r} needs rows × columns of each layer and the bias "
            f"of those rows, but {first.layer.name!r} has {first.size} scattered "
            f"entries. Use structure={' or '.join(map(repr, able))}, or choose with "
            "smidgen.select.sparse_kfac."
        )


def _refuse_bad_weights(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter.detach()).all():
            raise DataError(
                f"the model's weights must be finite, got NaN or infinity in {name!r}. "
                "Train or load it again."
            )
