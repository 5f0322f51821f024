"""Batches as they are read: what of them are inputs and targets, every one with a number.

A batch is a tensor, (inputs, targets), or has names: a mapping, a dataclass, a named tuple with
names we know. Named inputs are passed by keyword; several in a tuple one after another if the
model takes as many. Where that is not certain it is refused.

NaN is refused in every input, infinity in all but masks: an additive mask is −∞ where nothing
shall be seen, and some networks take it as an input. Targets are no inputs. What an input
becomes inside the network is checked where it is summed.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from smidgen.errors import ArgumentError, DataError, reason
from smidgen.outputs.logits import find_logits
from smidgen.runtime.importing.foreign_tables import name_table, refuse_other_tables
from smidgen.types import Batch

TARGET_KEYS = ("labels", "label", "targets", "target")
"""What targets are called in batches with names."""

# Names that tell a batch with names from (inputs, targets).
_KNOWN_NAMES = frozenset((*TARGET_KEYS, "input_ids", "attention_mask", "pixel_values"))
# Inputs whose names hold one of these are added to scores, and may be −∞.
_MASKS = ("mask", "bias")

# How to batch the rows of a Dataset that nobody else can.
_BY_HAND = (
    "torch.utils.data.DataLoader(dataset, batch_size=32, collate_fn=...), for texts with "
    "transformers.DataCollatorWithPadding(tokenizer)"
)
_ROWS = 32

FindTargets = Callable[[Batch], Tensor | None]


@dataclass(frozen=True)
class Unread:
    """Targets that are not read: rows that are predicted may have none, or NaN."""

    targets: FindTargets

    def __call__(self, batch: Batch) -> None:
        """Return no targets, whatever the batch holds."""


# As many examples show which layers make the outputs, and where weights are used.
_FEW = 2


def model_outputs(model: nn.Module, batch: Batch) -> Tensor:
    """Call a model on named inputs, an (inputs, targets) pair or a tensor."""
    inputs = find_inputs(batch)
    args, kwargs = _choose_arguments(model, batch, inputs)
    try:
        outputs = model(*args, **kwargs)
    except (AttributeError, TypeError) as error:
        tried = isinstance(inputs, (tuple, list)) or is_dataclass(batch)
        if _binds(model, *args, **kwargs) and not tried:
            raise
        raise DataError(
            f"a batch must hold what {type(model).__name__} takes, got one it cannot be called "
            f"with ({reason(error)}). Pass smidgen.Problem(model, forward=lambda model, batch: "
            "model(...)), with targets=lambda batch: ... if they are not found by themselves."
        ) from error
    return outputs if isinstance(outputs, Tensor) else find_logits(model, outputs)


def _choose_arguments(
    model: nn.Module, batch: Batch, inputs: Batch
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """By keyword what has names; a tuple as one argument, or several if that is how many fit."""
    if not isinstance(inputs, Mapping):
        several = isinstance(inputs, (tuple, list)) and not _binds(model, inputs)
        return (tuple(inputs) if several else (inputs,)), {}
    kwargs = {str(name): value for name, value in inputs.items()}
    if (
        is_dataclass(batch)
        and not isinstance(batch, Mapping)
        and not _binds(model, **kwargs)
    ):
        # The model may take the whole of it, as it is.
        return (batch,), {}
    if len(kwargs) == 1 and not _binds(model, **kwargs):
        return tuple(kwargs.values()), {}
    if "use_cache" in signature(model.forward).parameters:
        kwargs["use_cache"] = False
    return (), kwargs


def _binds(model: nn.Module, *args: Any, **kwargs: Any) -> bool:
    """Whether a model's forward takes these arguments, as far as its signature tells."""
    try:
        signature(model.forward).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:  # it has none
        return True
    return True


def find_inputs(batch: Batch) -> Batch:
    """What a model is given of a batch: all that has a name but targets, or the first of a pair."""
    named = _read_names(batch)
    if named is not None:
        return {name: value for name, value in named.items() if name not in TARGET_KEYS}
    if not isinstance(batch, (tuple, list)) or not batch:
        return batch
    if len(batch) > 2:
        raise _refuse_many(batch)
    return batch[0]


def batch_targets(batch: Batch) -> Tensor | None:
    """Find the targets of a batch: its labels, or the second of a pair."""
    named = _read_names(batch)
    if named is not None:
        for key in TARGET_KEYS:
            if named.get(key) is not None:
                return torch.as_tensor(named[key])
        return None
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        return None
    if len(batch) > 2:
        raise _refuse_many(batch)
    return torch.as_tensor(batch[1])


def batch_mask(batch: Batch) -> Tensor | None:
    """Find which positions (B, T) are not padding, if the batch says so."""
    named = _read_names(batch)
    mask = None if named is None else named.get("attention_mask")
    return mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 else None


def _read_names(batch: Batch) -> Mapping[str, Any] | None:
    """A batch by names: a mapping, a dataclass, or a named tuple that has a name we know."""
    if isinstance(batch, Mapping):
        return batch
    if isinstance(batch, tuple):
        names = getattr(batch, "_fields", ())
        return dict(zip(names, batch, strict=True)) if _KNOWN_NAMES & {*names} else None
    if is_dataclass(batch) and not isinstance(batch, type):
        return {entry.name: getattr(batch, entry.name) for entry in fields(batch)}
    return None


def _refuse_many(batch: Sequence[Any]) -> DataError:
    return DataError(
        f"a batch must have names or be a tensor or (inputs, targets), got {len(batch)} items. "
        "Put several inputs into one tuple, ((first, second), targets), or pass "
        "smidgen.Problem(model, forward=lambda model, batch: model(*batch[:-1]), "
        "targets=lambda batch: batch[-1])."
    )


def as_batches(batches: Iterable[Batch]) -> Iterable[Batch]:
    """Return a loader as it is, and batches of a `datasets.Dataset`, in its order.

    Args:
        batches: Any iterable of batches; or a `Dataset` in torch format whose columns are
            tensors of one shape each, with the names that the model and its targets have.

    Returns:
        Batches; those of a `Dataset` have 32 rows.
    """
    if not _is_usual(batches):
        if name_table(batches) == "Dataset":
            return _batch_dataset(batches)
        check_batches(batches)
    return batches


def _is_usual(batches: object) -> bool:
    """Whether these are what most users pass."""
    return isinstance(batches, (list, DataLoader, Iterator))


def _batch_dataset(dataset: Any) -> Iterable[Batch]:
    kind = dataset.format["type"]
    if kind != "torch":
        raise ArgumentError(
            f"batches must be a loader or a Dataset in torch format, got a Dataset in "
            f"{kind or 'python'} format. Pass dataset.with_format('torch'), or {_BY_HAND}."
        )
    # Without a generator of its own a loader draws from the global one.
    return DataLoader(
        dataset, batch_size=_ROWS, collate_fn=_stack, generator=torch.Generator()
    )


def _stack(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Stack the columns of rows, which must be tensors of one shape."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    for name, values in columns.items():
        wrong = next((v for v in values if not isinstance(v, Tensor)), None)
        if wrong is not None:
            raise DataError(
                f"the columns of a Dataset must be tensors, got {type(wrong).__name__} in "
                f"{name!r}. Leave it out, with dataset.remove_columns({name!r})."
            )
        shapes = sorted({tuple(value.shape) for value in values})
        if len(shapes) > 1:
            raise DataError(
                f"the rows of {name!r} must have one shape, got {shapes[0]} and {shapes[1]}. "
                f"Pass {_BY_HAND}."
            )
    return {name: torch.stack(values) for name, values in columns.items()}


def check_batches(batches: object) -> None:
    """Refuse one batch, or something else altogether, in the place of many."""
    if _is_usual(batches):
        return
    refuse_other_tables("batches", batches)
    table = name_table(batches)
    if table == "Dataset":
        raise ArgumentError(
            "batches must be a loader here, since training follows its order, got a Dataset. "
            "Pass torch.utils.data.DataLoader(dataset.with_format('torch'), batch_size=32, "
            "shuffle=True)."
        )
    if table is not None:
        raise ArgumentError(
            f"batches must be a loader or a list of batches, got a {table}. Read texts with "
            "smidgen.integrations.text.read_text, or use the estimators of smidgen.sklearn."
        )
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
    if is_dataclass(batch) and not isinstance(batch, type):
        other = copy(batch)
        for entry in fields(batch):
            value = move_batch(getattr(batch, entry.name), device)
            # One that is frozen, too.
            object.__setattr__(other, entry.name, value)
        return other
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


def count_examples(batch: Batch) -> int | None:
    """Count the examples of a batch; None where its inputs differ in length."""
    counts = {len(x) for x in tree_leaves(find_inputs(batch)) if _has_length(x)}
    return counts.pop() if len(counts) == 1 else None


def number_examples(rows: int, examples: int | None) -> Tensor:
    """Number the example of each row of outputs, (R,): tokens of one text are of one example."""
    if not examples or rows % examples:
        return torch.arange(rows)
    return torch.arange(examples).repeat_interleave(rows // examples)


def _has_length(value: object) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def take_few(batch: Batch) -> Batch:
    """Take the first examples of a batch, if its axis of examples can be told."""
    leaves = (value for value in tree_leaves(batch) if isinstance(value, Tensor))
    sizes = [len(tensor) for tensor in leaves if tensor.dim()]
    if not sizes or sizes[0] <= _FEW:
        return batch
    return _slice(batch, sizes[0])


def _slice(batch: Batch, examples: int) -> Batch:
    if isinstance(batch, Tensor):
        return batch[:_FEW] if batch.dim() and len(batch) == examples else batch
    if isinstance(batch, Mapping):
        return {name: _slice(value, examples) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_slice(item, examples) for item in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(_slice(item, examples) for item in batch)
    return batch
