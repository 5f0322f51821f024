"""Other tensors in the place of a shadow's, for a pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from smidgen.runtime.keeping.structure import list_modules


@contextmanager
def swap_tensors(shadow: nn.Module, replaced: Mapping[str, Tensor]) -> Iterator[None]:
    """Put other tensors, by name, in the place of a shadow's while the context lasts.

    Tied weights are replaced wherever they are. Buffers that are not named are copied: a
    pass that counts in one must not count in the caller's, nor in the next pass.
    """
    swaps = {id(_find_tensor(shadow, name)): value for name, value in replaced.items()}
    undo: list[tuple[dict[str, Any], str, Tensor | None]] = []
    for module in _list_all_modules(shadow):
        for name, buffer in module._buffers.items():
            if buffer is None:
                continue
            if id(buffer) not in swaps:
                swaps[id(buffer)] = buffer.clone()
            undo.append((module._buffers, name, buffer))
        if replaced:
            for name, parameter in module._parameters.items():
                if id(parameter) in swaps:
                    undo.append((module._parameters, name, parameter))
    try:
        for held, name, before in undo:
            held[name] = swaps[id(before)]
        yield
    finally:
        for held, name, before in undo:
            held[name] = before


def _list_all_modules(model: nn.Module) -> list[nn.Module]:
    """List every module once, those inside scripted ones too."""
    modules = list_modules(model)
    scripted = [m for m in modules if isinstance(m, torch.jit.ScriptModule)]
    if not scripted:
        return modules
    inside = chain.from_iterable(module.modules() for module in scripted)
    return list({id(module): module for module in chain(modules, inside)}.values())


def _find_tensor(model: nn.Module, name: str) -> Tensor | None:
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if leaf in module._parameters:
        return module._parameters[leaf]
    return module._buffers[leaf]
