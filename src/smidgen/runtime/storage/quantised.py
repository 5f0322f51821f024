"""Quantised weights: numbers packed into tensors of other types or classes.

Those of bitsandbytes are parameters of classes of their own, with what unpacks them among
their attributes; those of torchao are tensors made of tensors. None is ever replaced. The
packages are not imported here: a model that has such weights has imported them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from smidgen.errors import StructureError

_SCALES = "quant_state"


def is_quantised(weight: Tensor) -> bool:
    """Whether a tensor does not hold one floating-point number for each entry as it is."""
    if not weight.is_floating_point() or weight.itemsize < 2 or _has_scales(weight):
        return True
    return any(is_quantised(inner) for inner in _list_inner(weight))


def is_wrapped(weight: Tensor) -> bool:
    """Whether a quantised tensor is of a class of its own, beside its type."""
    return type(weight) not in (Tensor, nn.Parameter) and is_quantised(weight)


def _has_scales(weight: Tensor) -> bool:
    return _SCALES in getattr(weight, "__dict__", ())


def _list_inner(weight: Tensor) -> list[Tensor]:
    """List the tensors that a tensor is made of, if it is."""
    if not hasattr(weight, "__tensor_flatten__"):
        return []
    inner = (getattr(weight, name) for name in weight.__tensor_flatten__()[0])
    return [part for part in inner if isinstance(part, Tensor)]


def list_parts(weight: Tensor) -> list[Tensor]:
    """List the plain tensors that a quantised one is made of; any other is one part."""
    if not is_wrapped(weight):
        return [weight]
    parts = [part for each in _list_inner(weight) for part in list_parts(each)]
    return parts or [weight.as_subclass(Tensor)]


def list_stored(weight: Tensor) -> list[Tensor]:
    """List the tensors whose bytes tell a weight from another, scales of bitsandbytes left out."""
    if _has_scales(weight):
        # On some CPUs it lays them out anew when a model is run, and rounds the scales: the
        # codes alone stay what they were.
        return [share_quantised(weight).as_subclass(Tensor)]
    return list_parts(weight)


def is_class_of_its_own(parameter: Tensor) -> bool:
    """Whether a parameter carries attributes, beside its numbers, that its layer needs."""
    plain = type(parameter) in (nn.Parameter, Tensor)
    return not plain and not hasattr(parameter, "__tensor_flatten__")


def share_quantised(parameter: Tensor) -> Tensor:
    """Make another parameter of the same class on the same numbers, with attributes of its own."""
    numbers = parameter.as_subclass(Tensor).detach()
    other = Tensor._make_subclass(type(parameter), numbers, False)
    vars(other).update(vars(parameter))
    if _has_scales(other):
        _unpack_layout(other)
    return other


def _unpack_layout(weight: Any) -> None:
    """Give a 4-bit weight scales of its own, in the layout that can be differentiated."""
    scales = weight.quant_state = copy(weight.quant_state)
    if not getattr(scales, "packing_format_for_cpu", False):
        return
    largest = scales.absmax.T.float().reshape(-1)
    # Its own way back rounds once more, or leaves them transposed.
    scales.original_nested = False
    package = sys.modules[type(scales).__module__]
    weight.data, _ = package._convert_weight_packed_for_cpu_inverse(weight.data, scales)
    scales.absmax = largest


@contextmanager
def refuse_cuts(shadow: nn.Module) -> Iterator[None]:
    """Refuse passes in which a quantised layer lets no gradient through to a chosen one."""
    # Where there is another way around it, the gradient would be wrong, and not missing.
    weights = ((m, m._parameters.get("weight")) for m in shadow.modules())
    handles = [
        module.register_forward_hook(_refuse_cut)
        for module, weight in weights
        if weight is not None and is_wrapped(weight)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _refuse_cut(module: Any, args: tuple[Any, ...], out: Any) -> None:
    needs = torch.is_grad_enabled() and any(
        getattr(x, "requires_grad", False) for x in args
    )
    if needs and not getattr(out, "requires_grad", True):
        raise StructureError(
            "quantised layers above the chosen ones must let gradients through, got one of "
            f"class {type(module.weight).__name__} that does not. Quantise weights alone, "
            "not activations, or choose the last layer."
        )


def settle_attributes(attributes: dict[str, Any]) -> None:
    """Have a shadow of a quantised layer write to nothing of the layer."""
    if "support_avx512bf16_for_cpu" in attributes:
        # Else it would lay its weight out anew, for passes without gradients.
        attributes["support_avx512bf16_for_cpu"] = False
    if type(attributes.get("state")).__name__ == "MatmulLtState":
        attributes["state"] = copy(attributes["state"])
