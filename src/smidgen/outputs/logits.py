"""Which of the things a model returns are its logits: one of them for certain, or a refusal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from smidgen.errors import DataError


def find_logits(model: nn.Module, returned: Any) -> Tensor:
    """Find the logits of what is no tensor: `["logits"]`, `.logits`, or the one of a tuple."""
    if isinstance(returned, Mapping) and "logits" in returned:
        found = returned["logits"]
    elif hasattr(returned, "logits"):
        found = returned.logits
    elif isinstance(returned, (tuple, list)):
        found = _pick(model, returned)
    else:
        found = None
    if not isinstance(found, Tensor):
        raise DataError(
            f"the model must return its logits, got {_describe(returned)}. Pass "
            "Problem(model, forward=lambda model, batch: ...) with a function that returns "
            "them."
        )
    return found


def _describe(returned: Any) -> str:
    """Name the kind of what was returned, and the tensors in it."""
    held = returned if isinstance(returned, Mapping) else getattr(returned, "__dict__", {})
    tensors = {name: value for name, value in held.items() if isinstance(value, Tensor)}
    shapes = [f"{name!r} of shape {tuple(value.shape)}" for name, value in tensors.items()]
    kind = type(returned).__name__
    return f"{kind} with {', '.join(shapes[:4])} and no logits" if shapes else kind


def _pick(model: nn.Module, returned: tuple[Any, ...] | list[Any]) -> Tensor | None:
    """Pick the only tensor, or the only one as wide as a Hugging Face model's labels."""
    # The rule must not look at targets: then the same model could be fitted, but predict
    # nothing without labels.
    tensors = [item for item in returned if isinstance(item, Tensor)]
    if len(tensors) <= 1:
        return tensors[0] if tensors else None
    labels = getattr(getattr(model, "config", None), "num_labels", None)
    of_labels = [t for t in tensors if t.dim() > 1 and t.shape[-1] == labels]
    if len(of_labels) == 1:
        return of_labels[0]
    shapes = " and ".join(str(tuple(tensor.shape)) for tensor in tensors)
    raise DataError(
        f"the model must return its logits, got {len(tensors)} tensors of shapes {shapes}, and "
        "which of them are the logits is not certain. Pass Problem(model, forward=...) with a "
        "function of the model and a batch that returns them, such as lambda model, batch: "
        "model(batch[0])[1]."
    )
