"""The state of a model: what its hash is made of, wherever the numbers lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from smidgen.runtime.storage.offload import read_offloaded
from smidgen.runtime.storage.packed import is_packed, list_stored


def read_state(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Read weights and persistent buffers by name, in order, one after another.

    Of a quantised weight the codes count, and not their scales.
    """
    if all(not (p.is_meta or is_packed(p)) for p in model.parameters()):
        yield from sorted(model.state_dict().items())
        return
    # Not its own state dict: that is empty where weights are offloaded, and making one lets
    # some layers of bitsandbytes change their weights.
    for name, held in sorted(_list_tensors(model), key=lambda pair: pair[0]):
        for stored in list_stored(read_offloaded(model, name, held)):
            yield name, stored


def _list_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for path, module in model.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        hidden = module._non_persistent_buffers_set
        buffers = {n: b for n, b in module._buffers.items() if n not in hidden}
        for name, tensor in (module._parameters | buffers).items():
            if tensor is not None:
                yield prefix + name, tensor
