"""The structure of a model: what is worked out from it may be kept while it is as it was.

A structure is every module's class and attributes, hooks, parameters and buffers, and what is
in the containers, functions and objects among them, as deep as a shadow looks. Each is compared
by identity, so the check is exact and takes about a microsecond a module. Values of weights may
change; where they are stored may not.

Where that cannot be told, nothing is kept: scripted modules and modules with slots, tensors of
classes of their own or without numbers, attributes that lead back to the model. The last
because a structure lives as long as its model, and must not hold it.
"""

from __future__ import annotations

import gc
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copyreg import _slotnames  # type: ignore[attr-defined]
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter, is_, methodcaller
from threading import Lock, local
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any, TypeVar
from weakref import ProxyTypes, WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

_ATOMS = frozenset(
    (bool, int, float, complex, str, bytes, NoneType, torch.dtype, torch.device, torch.Size)
)
_DICTS = (dict, OrderedDict, defaultdict)
_LISTS = (list, set, deque)
_FIXED = (tuple, frozenset)
# Subclasses, which may hold more than their items, and what leads elsewhere.
_OPAQUE: Any = (dict, *_LISTS, ref, *ProxyTypes)
_TENSORS = (Tensor, nn.Parameter, nn.Buffer)
# What may hold anything and does not belong to a model.
_SHARED = (type, ModuleType, BuiltinFunctionType)
_Made = TypeVar("_Made")
_VALUES, _REQUIRES_GRAD = methodcaller("values"), attrgetter("requires_grad")
# What no pass runs, nor a shadow.
_NOT_RUN = frozenset(
    ("_state_dict_hooks", "_state_dict_pre_hooks")
    + ("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
)
# How many objects are followed to see whether one leads back to the model.
_FOLLOWED = 20_000


class _NotKept(Exception):
    """Something of this model could change unseen."""


class Structure:
    """What a model is made of, and what is kept of it while it holds.

    Args:
        model: The model; nothing here holds it, unless it is `ours`.
        ours: It was made here, and is given away together with its structure.
    """

    def __init__(self, model: nn.Module, *, ours: bool = False) -> None:
        self.idle: list[tuple[nn.Module, Structure]] = []  # shadows that nobody uses
        self._kept: dict[int, tuple[ref[Any], Any]] = {}
        self._root = None if ours else model
        self._modules: list[nn.Module] = []  # all but the model itself
        self._types: list[type] = []
        self._attributes: list[dict[str, Any]] = []  # of each module
        # Dicts, and what is in all of them, one after another: compared at once.
        self._dicts: list[dict[Any, Any]] = []
        self._lengths: list[int] = []
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._lists: list[tuple[Iterable[Any], list[Any]]] = []
        self._empty: list[Any] = []
        self._parts: list[tuple[Callable[[], tuple[Any, ...]], tuple[Any, ...]]] = []
        # By id, with the values themselves, so that no other object gets their ids.
        self._seen: dict[tuple[int, bool], Any] = {}
        self._leaves: list[Any] = []
        modules = list_modules(model)
        for module in modules:
            if isinstance(module, torch.jit.ScriptModule) or _slotnames(type(module)):
                raise _NotKept
        self._own = frozenset(map(id, modules))
        for module in modules:
            self._types.append(type(module))
            self._attributes.append(vars(module))
            self._visit_attributes(module)
        self._modules = modules[1:]
        self.tensors = _find_tensors(modules)
        if any(tensor.is_meta for tensor in self.tensors):
            raise _NotKept
        # Other tensors in the same place, and which of them a shadow has detached.
        self._places = [tensor.detach() for tensor in self.tensors]
        self._trained = list(map(_REQUIRES_GRAD, self.tensors))
        if not ours and _leads_to(self._leaves, model):
            raise _NotKept
        self._root, self._leaves, self._seen = None, [], {}

    @classmethod
    def of_shadow(cls, shadow: nn.Module) -> Structure | None:
        """The structure of a model made here, unless something of it could change unseen."""
        try:
            return cls(shadow, ours=True)
        except _NotKept:
            return None

    def holds(self, model: nn.Module) -> bool:
        """Whether the model is still made of this."""
        modules = [model, *self._modules]
        try:
            return (
                not any(self._empty)
                and [*map(len, self._dicts)] == self._lengths
                and [*chain.from_iterable(self._dicts)] == self._keys
                and all(
                    map(is_, chain.from_iterable(map(_VALUES, self._dicts)), self._values)
                )
                and [*map(type, modules)] == self._types
                and all(map(is_, map(vars, modules), self._attributes))
                and all(_same([*held], items) for held, items in self._lists)
                and all(_same(find(), parts) for find, parts in self._parts)
                and all(map(Tensor.is_set_to, self.tensors, self._places))
                and [*map(_REQUIRES_GRAD, self.tensors)] == self._trained
            )
        except RuntimeError:  # another thread is changing it
            return False

    def keep(self, owner: object, make: Callable[[], _Made]) -> _Made:
        """Return what was made for an owner, or make it; kept while both are there."""
        # By id, since an owner need have no hash. What is made must not hold its owner.
        key, known = id(owner), self._kept.get(id(owner))
        if known is not None and known[0]() is owner:
            made: _Made = known[1]
            return made
        this = ref(self)

        def forget(gone: ref[Any]) -> None:
            structure = this()
            if structure is not None and structure._kept.get(key, (None,))[0] is gone:
                del structure._kept[key]

        made = make()
        self._kept[key] = ref(owner, forget), made
        return made

    def _visit(self, value: Any, within: bool) -> None:
        """Note what is in a value; `within` as in a shadow."""
        kind = type(value)
        if kind in _ATOMS:
            return
        if isinstance(value, Tensor):
            if kind not in _TENSORS:
                raise _NotKept
            self._leaves.append(value)
            return
        if isinstance(value, nn.Module):
            if value is self._root:
                raise _NotKept
            if id(value) not in self._own:
                self._leaves.append(value)
            return
        key = id(value), within
        if key not in self._seen:
            self._seen[key] = value
            self._look_into(value, kind, within)

    def _look_into(self, value: Any, kind: type, within: bool) -> None:
        if kind in _DICTS:
            self._visit_dict(value, within)
        elif kind in _LISTS:
            items = list(value)
            if items:
                self._lists.append((value, items))
                self._visit_all(items, within)
            else:
                self._empty.append(value)
        elif isinstance(value, _FIXED):
            self._visit_all(value, within)
        elif isinstance(value, _OPAQUE):
            raise _NotKept
        elif (find := _part_finder(value)) is not None:
            parts = find()
            self._parts.append((find, parts))
            self._visit_all(parts, within)
        else:
            self._leaves.append(value)
            if within and kind.__dictoffset__ and not isinstance(value, _SHARED):
                if _slotnames(kind):
                    raise _NotKept
                self._parts.append((lambda: (vars(value),), (vars(value),)))
                self._visit_dict(vars(value), False)

    def _visit_attributes(self, module: nn.Module) -> None:
        for name, value in self._note_dict(vars(module)):
            if name in _NOT_RUN:
                self._leaves.append(value)
            else:
                self._visit(value, True)

    def _visit_dict(self, held: dict[Any, Any], within: bool) -> None:
        if not held:
            self._empty.append(held)
            return
        self._visit_all((value for _, value in self._note_dict(held)), within)

    def _note_dict(self, held: dict[Any, Any]) -> list[tuple[Any, Any]]:
        items = list(held.items())
        self._dicts.append(held)
        self._lengths.append(len(items))
        self._keys += [key for key, _ in items]
        self._values += [value for _, value in items]
        return items

    def _visit_all(self, values: Iterable[Any], within: bool) -> None:
        for value in values:
            self._visit(value, within)


@dataclass(eq=False)
class _Refusal:
    """A model of which nothing is kept; `left` calls until that is looked at again."""

    left: int
    wait: int


class _Trust(local):
    """The structure that was just seen to hold in this thread."""

    structure: Structure | None = None


_KNOWN: WeakKeyDictionary[nn.Module, Structure | _Refusal] = WeakKeyDictionary()
_CHANGING = Lock()
_TRUST = _Trust()


@contextmanager
def trust_structure(structure: Structure | None) -> Iterator[None]:
    """Look at a model once, not again in this context: nothing of the caller's runs in it."""
    before, _TRUST.structure = _TRUST.structure, structure
    try:
        yield
    finally:
        _TRUST.structure = before


def find_structure(model: nn.Module) -> Structure | None:
    """Find the structure of a model, the same one while it holds; None if none can be kept."""
    known = _KNOWN.get(model)
    if isinstance(known, Structure) and (known is _TRUST.structure or known.holds(model)):
        return known
    if isinstance(known, _Refusal) and known.left > 0:
        known.left -= 1
        return None
    try:
        structure = Structure(model)
    except (_NotKept, RuntimeError, TypeError):
        refuse_to_keep(model)
        return None
    with _CHANGING:
        # Another thread may have come first.
        latest = _KNOWN.get(model)
        if isinstance(latest, Structure) and latest is not known and latest.holds(model):
            return latest
        _KNOWN[model] = structure
    return structure


def refuse_to_keep(model: nn.Module) -> None:
    """Keep nothing of a model for some calls, each time for twice as many."""
    with _CHANGING:
        known = _KNOWN.get(model)
        wait = 2 * known.wait if isinstance(known, _Refusal) else 1
        _KNOWN[model] = _Refusal(wait, wait)


def unwrap(model: nn.Module) -> nn.Module:
    """Find the model itself in what torch.compile or parallel training put around it."""
    # They change neither outputs nor weights, only names. Hooks on a wrapper may do more.
    while (name := _find_inside(model)) and not (
        model._forward_hooks or model._forward_pre_hooks
    ):
        model = getattr(model, name)
    return model


def _find_inside(model: nn.Module) -> str | None:
    kind = type(model)
    # By name: importing the compiler takes a second.
    if (kind.__module__, kind.__name__) == ("torch._dynamo.eval_frame", "OptimizedModule"):
        return "_orig_mod"
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    return "module" if isinstance(model, parallel) else None


def list_modules(model: nn.Module) -> list[nn.Module]:
    """List every module once, the model first; those inside a scripted one belong to that."""
    listed = {id(model): model}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if not isinstance(module, torch.jit.ScriptModule):
            for part in list(module._modules.values()):
                if part is not None and id(part) not in listed:
                    listed[id(part)] = part
                    waiting.append(part)
    return list(listed.values())


def _find_tensors(modules: Iterable[nn.Module]) -> list[Tensor]:
    """List all parameters and buffers once."""
    held = (
        each
        for m in modules
        for kept in (m._parameters, m._buffers)
        for each in kept.values()
    )
    return list({id(tensor): tensor for tensor in held if tensor is not None}.values())


def _same(items: Any, before: Any) -> bool:
    return len(items) == len(before) and all(map(is_, items, before))


def _part_finder(value: Any) -> Callable[[], tuple[Any, ...]] | None:
    """What finds the parts of a function or a part of one, if that is what the value is."""
    if isinstance(value, MethodType):
        return lambda: (value.__func__, value.__self__)
    if isinstance(value, partial):
        return lambda: (value.func, value.args, value.keywords, vars(value))
    if isinstance(value, FunctionType):
        return lambda: (
            value.__code__,
            value.__defaults__,
            value.__kwdefaults__,
            vars(value),
            *(value.__closure__ or ()),
        )
    return partial(_open_cell, value) if isinstance(value, CellType) else None


def _open_cell(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # not set yet
        return ()


def _leads_to(values: Iterable[Any], model: nn.Module) -> bool:
    """Whether the model can be reached from some objects, or that takes too long to tell."""
    waiting, seen = list(values), set()
    while waiting:
        value = waiting.pop()
        if value is model:
            return True
        if id(value) in seen or type(value) in _ATOMS or isinstance(value, _SHARED):
            continue
        seen.add(id(value))
        if len(seen) > _FOLLOWED:
            return True
        waiting.extend(_find_referents(value))
    return False


def _find_referents(value: Any) -> Iterator[Any]:
    # Not the names of the file it stands in.
    if isinstance(value, FunctionType):
        names = value.__globals__
        return (held for held in gc.get_referents(value) if held is not names)
    return iter(gc.get_referents(value))
