"""Run again what has changed, and only that: the part of a network below the changes.

Passes that differ in a few weights share every module that comes before them. A module
without such weights, given inputs equal to those of the first pass, returns what it
returned then. Inputs are compared, not assumed, so the order of modules does not matter; a
module whose inputs once differed comes after a change, and is not asked again. What a
module does besides returning (noting something elsewhere, reading what another has set)
cannot be seen: whoever uses a memo compares one pass with a plain one first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

# Values that are the same wherever they are equal, and never change.
_PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.dtype,
    torch.device,
    Enum,
)


@dataclass(frozen=True, eq=False)
class _Values:
    """Arguments or results of a call, taken apart, and how often each was written to."""

    leaves: list[Any]
    spec: TreeSpec
    versions: list[int]

    @classmethod
    def of(cls, values: Any) -> _Values | None:
        """Take values apart; None if there is something among them that may change."""
        leaves, spec = tree_flatten(values)
        if not all(_comparable(each) for each in leaves):
            return None
        return cls(leaves, spec, [each._version for each in leaves if _is_tensor(each)])

    @property
    def unwritten(self) -> bool:
        return self.versions == [e._version for e in self.leaves if _is_tensor(e)]

    def whole(self) -> Any:
        """Put together anew: a caller may change the container it gets."""
        return tree_unflatten(self.leaves, self.spec)

    def equals(self, other: _Values) -> bool:
        return self.spec == other.spec and all(map(_equal, self.leaves, other.leaves))


class PrefixCache:
    """What unchanged modules returned in the first pass over a batch.

    Args:
        model: The network.
        changing: Names of the parameters that differ between passes.
    """

    def __init__(self, model: nn.Module, changing: Collection[str]) -> None:
        named = dict(model.named_parameters(remove_duplicate=False))
        moving = {id(named[name]) for name in changing}
        found = dict.fromkeys(_steady(model, moving))
        self.steady = [each for each in found if each is not model]
        self.calls: dict[nn.Module, list[tuple[_Values, _Values] | None]] = {}
        # How many calls of each module this pass has seen: a shared one runs again.
        self.turn: dict[nn.Module, int] = {}
        self.filled = False
        self.reused = 0

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
                inputs = _Values.of((args, kwargs))
                output = forward(*args, **kwargs)
                results = _Values.of(output)
                known = inputs is not None and results is not None and inputs.unwritten
                calls.append((inputs, results) if known else None)  # type: ignore[arg-type]
                return output
            if turn < len(calls) and _holds(calls[turn], args, kwargs):
                self.reused += 1
                return calls[turn][1].whole()  # type: ignore[index]
            # What comes after a change differs in every pass.
            del calls[turn:]
            return forward(*args, **kwargs)

        return run


def _holds(call: tuple[_Values, _Values] | None, args: Any, kwargs: Any) -> bool:
    if call is None or not (call[0].unwritten and call[1].unwritten):
        return False
    now = _Values.of((args, kwargs))
    return now is not None and call[0].equals(now)


def _steady(module: nn.Module, moving: Collection[int]) -> Iterator[nn.Module]:
    """The largest modules without moving parameters, and without hooks to run."""
    holds = any(id(parameter) in moving for parameter in module.parameters())
    # Lists and dicts of modules are never called themselves.
    if holds or isinstance(module, nn.ModuleList | nn.ModuleDict):
        for child in module.children():
            yield from _steady(child, moving)
    elif not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules()):
        yield module


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _comparable(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.layout == torch.strided and not value.is_inference()
    return isinstance(value, _PLAIN)


def _equal(left: Any, right: Any) -> bool:
    if left is right:
        return True
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    return type(left) is type(right) and bool(left == right)
