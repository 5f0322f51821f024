"""What is kept of a Laplace posterior: its operators and its prior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from smidgen.curvature.operators import JOINT, STRUCTURES, Operator
from smidgen.errors import StoreError
from smidgen.outputs.problem import Problem
from smidgen.posterior.laplace import LaplacePosterior, Tuning
from smidgen.weights.blocks import LayerBlock, find_blocks

FIELDS: dict[str, type | tuple[type, ...]] = {
    "structure": str,
    "approximation": str,
    "precision": (float, dict),
}
"""What its config must have."""


def pack(posterior: LaplacePosterior) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split into tensors and settings."""
    tensors = {
        f"{part.name}/{name}": getattr(operator, part.name)
        for name, operator in posterior.operators.items()
        for part in fields(operator)
    }
    return tensors, {
        "structure": posterior.structure,
        "approximation": posterior.approximation,
        "precision": posterior.plain_precision,
        "log_likelihood": posterior.log_likelihood,
    }


def unpack(
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    problem: Problem,
    common: Mapping[str, Any],
) -> LaplacePosterior:
    """Put together what `pack` split, checking every shape."""
    kind = STRUCTURES[config["structure"]]
    chosen = find_blocks(problem.model, common["subset"])
    spans = {JOINT: chosen} if kind.joint else {b.layer.name: (b,) for b in chosen}
    return LaplacePosterior(
        operators={
            name: _operator(kind, tensors, name, span, problem.device)
            for name, span in spans.items()
        },
        precision=config["precision"],
        structure=config["structure"],
        approximation=config["approximation"],
        log_likelihood=config["log_likelihood"],
        tuning=_tuning(config["tuning"]),
        **common,
    )


def card(posterior: LaplacePosterior) -> str:
    """Describe it to whoever finds the folder."""
    subset = posterior.subset
    return f"""---
library_name: smidgen
tags: [bayesian, laplace, uncertainty]
---
# A posterior over {subset.size:,} weights

Laplace ({posterior.structure}, {posterior.approximation}) over {subset.size:,} of
{subset.total:,} weights of affine layers ({subset.fraction:.3%}), fitted to
{posterior.num_data:,} examples. Prior precision {posterior.precision_range}, temperature
{posterior.temperature:.4g}; {posterior.floats:,} floats in the factors.

```python
import smidgen

posterior = smidgen.load("this-folder", model)  # checks the base model's weights
predictive = smidgen.predict(posterior, model, batch)
```

SHA-256 of the base model's weights: `{posterior.fingerprint}`
"""


def _operator(
    kind: type[Operator],
    tensors: Mapping[str, Tensor],
    name: str,
    span: Sequence[LayerBlock],
    device: torch.device,
) -> Operator:
    size = sum(block.size for block in span)
    shapes = kind.shapes(span[0].row_count, span[0].column_count, size)
    parts = []
    for field, shape in zip(fields(kind), shapes, strict=True):
        key = f"{field.name}/{name}"
        if key not in tensors or tuple(tensors[key].shape) != shape:
            got = tuple(tensors[key].shape) if key in tensors else "nothing"
            raise StoreError(f"{key} must have shape {shape}, got {got}.")
        parts.append(tensors[key].to(device))
    return kind(*parts)


def _tuning(config: Mapping[str, Any] | None) -> Tuning | None:
    if config is None:
        return None
    listed: dict[str, Any] = dict(config)
    for name, value in config.items():
        if isinstance(value, list):
            listed[name] = tuple(value)
    return Tuning(**listed)
