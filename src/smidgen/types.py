"""Names for the shapes of data that pass between rooms. No logic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
"""A value that JSON can hold."""

Shape: TypeAlias = tuple[int, ...]
"""The shape of a parameter."""

Batch: TypeAlias = Any
"""What a data loader yields: a mapping, an (inputs, targets) pair, or a custom type."""

Reduce: TypeAlias = Callable[[Tensor], Tensor]
"""Adds a tensor up over all processes, as `accelerator.reduce` does; each gets the sum."""

Forward: TypeAlias = Callable[[nn.Module, Batch], Tensor]
"""Computes the outputs (B, C) of a model for a batch."""
