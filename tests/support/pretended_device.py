"""A device that is none: tensors of the CPU that refuse to meet those of the CPU.

There is no GPU in CI. What a GPU would refuse can be refused without one: an operation on
tensors of two devices (but for numbers, copies and indices), a generator of the wrong
device, and numpy. Values are computed on the CPU, so they must equal those of the CPU.

Only for processes of their own: torch knows one such device, once and for all.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import ClassVar

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "pretended"
# As with CUDA: what is copied may come from anywhere, and so may indices.
_MAY_MIX = ("_to_copy", "copy_", "index", "index_put", "index_put_", "_index_put_impl_")


class _Far(torch.Tensor):
    """A tensor that says it is elsewhere."""

    @staticmethod
    def __new__(cls, near):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            near.size(),
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=torch.device(NAME, 0),
        )

    def __init__(self, near):
        self.near = near

    def tolist(self):
        return self.near.tolist()

    def untyped_storage(self):
        return self.near.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, operation, types, given=(), named=None):
        return _computed(operation, given, named or {})


class _Pretending(TorchDispatchMode):
    """Also sees tensors that are made."""

    def __torch_dispatch__(self, operation, types, given=(), named=None):
        return _computed(operation, given, named or {})


class _Generator(torch.Generator):
    """One of the CPU that says it is elsewhere, if it was asked for there."""

    # Kept alive, so that no other gets the place of one.
    far: ClassVar[dict[int, torch.Generator]] = {}

    def __new__(cls, device="cpu"):
        made = super().__new__(cls)
        if torch.device(device).type == NAME:
            cls.far[made._cdata] = made
        return made

    @property
    def device(self):
        return torch.device(*((NAME, 0) if self._cdata in self.far else ("cpu",)))


class _Module(getattr(backend_registration, "_DummyBackendModule", object)):
    def get_amp_supported_dtype(self):
        return [torch.bfloat16]

    def get_rng_state(self, device=0):
        return torch.zeros(1, dtype=torch.uint8)

    def set_rng_state(self, state, device=0):
        pass


def can_be_pretended():
    return hasattr(backend_registration, "_setup_privateuseone_for_python_backend")


def announce():
    """Let torch know the device; before any backward pass, which counts them."""
    backend_registration._setup_privateuseone_for_python_backend(
        NAME, backend_module=_Module()
    )


@contextmanager
def pretended():
    """Let tensors be made on the device, and modules move there."""
    # A parameter of the CPU cannot become one of another class in place.
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    # `torch.tensor(..., device=...)` makes one of the CPU, and then moves it.
    torch._C._set_only_lift_cpu_tensors(True)
    torch.Generator = _Generator
    with _Pretending():
        yield


def _computed(operation, given, named):
    name = operation.overloadpacket.__name__
    tensors = [x for x in tree_leaves((given, named)) if isinstance(x, torch.Tensor)]
    far = [x for x in tensors if isinstance(x, _Far)]
    near = [x for x in tensors if not isinstance(x, _Far) and x.dim()]
    if far and near and name not in _MAY_MIX:
        raise RuntimeError(f"tensors of two devices meet in {operation}")
    asked = named.get("device")
    leaves = bool(far) if asked is None else torch.device(asked).type == NAME
    if name == "copy_":
        leaves = isinstance(given[0], _Far)
    source = named.get("generator")
    if source is not None and leaves != (source._cdata in _Generator.far):
        raise RuntimeError(f"a generator of another device draws in {operation}")
    if asked is not None and leaves:
        named = {**named, "device": torch.device("cpu")}

    def brought(x):
        return x.near if isinstance(x, _Far) else x

    known = {id(x.near): x for x in far}

    def sent(x):
        if not isinstance(x, torch.Tensor):
            return x
        # What an operation changes in place is still the same tensor.
        if leaves:
            return known[id(x)] if id(x) in known else _Far(x)
        return x

    return tree_map(sent, operation(*tree_map(brought, given), **tree_map(brought, named)))
