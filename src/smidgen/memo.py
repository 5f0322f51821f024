"""Run again what has changed, and only that: the part of a network below the changes.

Passes that differ in a few weights share every module that comes before them. A module
without such weights, given inputs equal to those of the first pass, returns what it
returned then. Inputs are compared, not assumed, so any order of modules is right; a module
whose inputs once differed comes after a change, and is not asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten


@dataclass(eq=False)
class _Call:
    """Inputs and output of one call, and how often the output had been written to."""

    inputs: list[Any]
    output: Any
    versions: list[int]

    def holds_for(self, inputs: list[Any]) -> bool:
        unwritten = self.versions == _versions(self.output)
        return unwritten and _equal(self.inputs, inputs)


class Memo:
    """What unchanged modules returned in the first pass over a batch.

    Args:
        model: The network.
        changing: Names of the parameters that differ between passes.
    """

    def __init__(self, model: nn.Module, changing: Collection[str]) -> None:
        named = dict(model.named_parameters(remove_duplicate=False))
        moving = {id(named[name]) for name in changing}
        self.steady = [each for each in _steady(model, moving) if each is not model]
        self.calls: dict[nn.Module, list[_Call]] = {}
        # How many calls of each module this pass has seen: a shared one runs again.
        self.turn: dict[nn.Module, int] = {}
        self.filled = False

    def forget(self) -> None:
        """Drop all that is kept: the next pass is a first one."""
        self.calls.clear()
        self.filled = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Make one pass: the first fills the memo, the others take from it.

        Yields:
            Nothing.
        """
        self.turn.clear()
        plain = {module: vars(module).get("forward") for module in self.steady}
        try:
            for module in self.steady:
                module.forward = self._remembering(module, module.forward)
            yield
        finally:
            for module, own in plain.items():
                if own is None:
                    vars(module).pop("forward", None)
                else:
                    module.forward = own
        self.filled = True

    def _remembering(
        self, module: nn.Module, forward: Callable[..., Any]
    ) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            turn = self.turn.get(module, 0)
            self.turn[module] = turn + 1
            calls = self.calls.setdefault(module, [])
            if not self.filled:
                inputs = _leaves((args, kwargs))
                output = forward(*args, **kwargs)
                calls.append(_Call(inputs, output, _versions(output)))
                return output
            if turn < len(calls) and calls[turn].holds_for(_leaves((args, kwargs))):
                return calls[turn].output
            # What comes after a change differs in every pass.
            del calls[turn:]
            return forward(*args, **kwargs)

        return run


def _steady(module: nn.Module, moving: Collection[int]) -> Iterator[nn.Module]:
    """The largest modules that hold none of the moving parameters."""
    holds = any(id(parameter) in moving for parameter in module.parameters())
    # Lists and dicts of modules are never called themselves.
    if holds or isinstance(module, nn.ModuleList | nn.ModuleDict):
        for child in module.children():
            yield from _steady(child, moving)
    else:
        yield module


def _leaves(values: Any) -> list[Any]:
    leaves, spec = tree_flatten(values)
    return [*leaves, spec]


def _versions(output: Any) -> list[int]:
    return [each._version for each in tree_flatten(output)[0] if isinstance(each, Tensor)]


def _equal(left: list[Any], right: list[Any]) -> bool:
    if len(left) != len(right):
        return False
    for one, other in zip(left, right, strict=True):
        if one is other:
            continue
        if isinstance(one, Tensor) or isinstance(other, Tensor):
            if not (
                isinstance(one, Tensor)
                and isinstance(other, Tensor)
                and one.dtype == other.dtype
                and torch.equal(one, other)
            ):
                return False
        elif type(one) is not type(other) or one != other:
            return False
    return True
