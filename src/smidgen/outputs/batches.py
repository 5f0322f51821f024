"""Batches as they are read: every one has a number, and its inputs are finite.

NaN is refused in every input, infinity in all but masks: an additive mask is −∞ where nothing
shall be seen, and some networks take it as an input. Targets are no inputs. What an input
becomes inside the network is checked where it is summed.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError, DataError
from smidgen.types import Batch

# Inputs whose names hold one of these are added to scores, and may be −∞.
_MASKS = ("mask", "bias")

FindTargets = Callable[[Batch], Tensor | None]


@dataclass(frozen=True)
class Unread:
    """Targets that are not read: rows that are predicted may have none, or NaN."""

    targets: FindTargets

    def __call__(self, batch: Batch) -> None:
        """Return no targets, whatever the batch holds."""


def check_batches(batches: object) -> None:
    """Refuse one batch, or something else altogether, in the place of many."""
    if isinstance(batches, (Tensor, Mapping, str, nn.Module)) or not isinstance(
        batches, Iterable
    ):
        kind = "one tensor" if isinstance(batches, Tensor) else type(batches).__name__
        raise ArgumentError(
            f"batches must be a loader or a list of batches, got {kind}. Put a single batch "
            "into a list, [batch]."
        )


@contextmanager
def in_batch(number: int) -> Iterator[None]:
    """Note the number of a batch, from 1, in every error about its data."""
    try:
        yield
    except DataError as error:
        if error.batch is None:
            error.batch = number
        raise


def refuse_not_finite(inputs: Batch, batch: Batch, targets: FindTargets) -> None:
    """Refuse NaN in a batch's inputs, and infinity in all that are not masks."""
    for name, tensor in _tensors(inputs, ""):
        # A finite sum proves every term finite; that of large numbers may overflow.
        if torch.isfinite(tensor.sum(dtype=_sum_type(tensor))):
            continue
        masked = any(word in name.lower() for word in _MASKS)
        wrong = tensor.isnan() if masked else ~tensor.isfinite()
        if not wrong.any() or _holds_targets(tensor, batch, targets):
            continue
        place = wrong.nonzero()[0].tolist()
        where = f" at row {place[0]}" if place else ""
        whose = f" of {name!r}" if name else ""
        raise DataError(
            f"inputs must be finite, got {float(tensor[tuple(place)])}{where}{whose} "
            "(rows are counted from 0). Leave that row out, or mend it."
        )


def require_examples(outputs: Tensor) -> None:
    """Refuse the outputs of a batch that holds no example."""
    if not outputs.numel():
        raise DataError("a batch holds no example. Leave empty batches out.")


def move_batch(batch: Batch, device: torch.device) -> Batch:
    """Put a batch on a device, without changing the batch itself."""
    if isinstance(batch, Tensor):
        # A tensor of inference mode cannot take part in autograd; its copy can.
        return (batch.clone() if batch.is_inference() else batch.detach()).to(device)
    if isinstance(batch, Mapping):
        # Other mappings become dicts: their copies might share their values.
        moved = copy(batch) if isinstance(batch, (dict, UserDict)) else {}
        for key, value in batch.items():
            moved[key] = move_batch(value, device)
        return moved
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move_batch(item, device) for item in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(move_batch(item, device) for item in batch)
    if hasattr(batch, "to"):
        # A copy: the `to` of a graph changes the graph itself.
        return copy(batch).to(device)
    return batch


def _tensors(value: Batch, name: str) -> Iterator[tuple[str, Tensor]]:
    """Find all tensors that could hold NaN, each with the name it has in its mapping."""
    if isinstance(value, Tensor):
        plain = value.layout == torch.strided and not value.is_meta
        if plain and value.is_floating_point():
            yield name, value.detach()
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, str(key))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item, name)


def _sum_type(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _holds_targets(tensor: Tensor, batch: Batch, targets: FindTargets) -> bool:
    """Whether a tensor of the batch is its targets."""
    find = targets.targets if isinstance(targets, Unread) else targets
    try:
        found = find(batch)
    except Exception:
        # A batch to predict need not hold what the caller's function looks for.
        return False
    return found is not None and _start(found) == _start(tensor)


def _start(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
