"""Shadows: copies of a model that share its weights, for passes that leave it alone.

Modes, hooks, drawn weights and patched forwards go into a shadow, never into the caller's
model, so several threads may work with one model while the caller runs it too. A shadow
belongs to one call in one thread; `keeping.shadows` lends one again where neither it nor the
model can have changed.

Every module is copied once, without its weights, and so are lists, dicts and sets among its
attributes. What else it holds is shared, unless modules of the same model are in it (bound
methods, partials, closures, containers, and objects that hold one themselves): that is
rebuilt around their shadows. A model that runs a module of its own in another way is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from copy import copy, deepcopy
from copyreg import _slotnames  # type: ignore[attr-defined]
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any
from weakref import ProxyTypes, proxy, ref

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from smidgen.errors import StructureError
from smidgen.runtime.guard import ShadowOrigin
from smidgen.runtime.keeping.structure import list_modules, unwrap
from smidgen.runtime.processes.whole_weights import (
    drop_sharding,
    find_plain_class,
    gather_copy,
    is_sharded,
    refuse_other_shards,
)
from smidgen.runtime.storage.offload import HOOK, shadow_hook
from smidgen.runtime.storage.quantised import (
    is_class_of_its_own,
    settle_attributes,
    share_quantised,
)

# Where the root of a shadow has its origin.
_MARK = "_smidgen_shadow"
# Values of these types hold no module.
_ATOMS = frozenset(
    (bool, int, float, complex, str, bytes, NoneType, torch.dtype, torch.device, torch.Size)
    + (ShadowOrigin,)
)
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_CONTAINERS = (list, dict, set, deque)


def shadow_model(model: nn.Module) -> nn.Module:
    """Copy a model's structure and share its weights, detached; modes stay as they are."""
    shadow: nn.Module = shadow_values(model, model)[0]
    return shadow


def shadow_values(model: nn.Module, *values: Any) -> tuple[Any, ...]:
    """Rebuild values that hold modules of a model around the modules of one shadow."""
    # In a caller's inference mode nothing made could take part in autograd.
    with torch.inference_mode(False):
        return _Shadowing(model).rebuild_all(values)


def find_origin(shadow: nn.Module) -> ShadowOrigin:
    """What a shadow was made of."""
    origin: ShadowOrigin = vars(shadow)[_MARK]
    return origin


def is_shadow(model: nn.Module) -> bool:
    """Whether a model was made here, so that passes may change it."""
    return _MARK in vars(model)


class _Eager(nn.Module):
    """Takes the place of what torch.compile made: hooks and other weights need no graph."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._orig_mod(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._modules["_orig_mod"], name)


class _Shadowing:
    """Makes one shadow: every module, parameter and value of the model once."""

    def __init__(self, model: nn.Module) -> None:
        self.shadows: dict[int, nn.Module] = {}
        self.tensors: dict[int, Tensor] = {}
        # With the values themselves, so that no other object gets their ids.
        self.rebuilt: dict[tuple[int, bool], tuple[Any, Any]] = {}
        modules = list_modules(model)
        _refuse_cached_parametrizations(modules)
        refuse_other_shards(modules)
        _refuse_unmerging(modules)
        self.sharded = is_sharded(model)
        for module in modules:
            self.shadows[id(module)] = _make_empty(module)
            self._detach_parameters(module)
        plain = [m for m in modules if not isinstance(m, torch.jit.ScriptModule)]
        self._copy_containers(plain)
        for module in plain:
            self._fill(module)
        # Of a shadow of a shadow, the first model may be run by mistake too.
        earlier = find_origin(model).modules if is_shadow(model) else {}
        own = frozenset(map(id, self.shadows.values()))
        origin = ShadowOrigin({**earlier, **{id(m): ref(m) for m in modules}}, own)
        vars(self.shadows[id(model)])[_MARK] = origin

    def _detach_parameters(self, module: nn.Module) -> None:
        held = [p for p in list(module._parameters.values()) if p is not None]
        # A layer of quantised weights writes to all its parameters.
        written = any(is_class_of_its_own(p) for p in held)
        for parameter in held:
            changed = parameter.requires_grad or written or self.sharded
            if id(parameter) in self.tensors or not changed:
                continue
            if is_class_of_its_own(parameter):
                self.tensors[id(parameter)] = share_quantised(parameter)
                continue
            # Of sharded weights those just gathered for a pass are freed unasked.
            detached = gather_copy(parameter) if self.sharded else parameter.detach()
            if type(parameter) is nn.Parameter or self.sharded:
                detached = nn.Parameter(detached, requires_grad=False)
            self.tensors[id(parameter)] = detached

    def _copy_containers(self, modules: Iterable[nn.Module]) -> None:
        """Give modules lists, dicts and sets of their own: a pass may write to them."""
        copies = []
        # All first, since what is rebuilt may hold any of them.
        for module in modules:
            for name, value in list(vars(module).items()):
                if name in _OF_EVERY_MODULE or not isinstance(value, _CONTAINERS):
                    continue
                if (id(value), True) not in self.rebuilt:
                    try:
                        other = copy(value)
                    except Exception:  # its class refuses
                        continue
                    copies.append(other)
                    for within in (False, True):
                        self.rebuilt[id(value), within] = value, other
        for other in copies:
            self._renew_items(other)

    def _renew_items(self, held: Any) -> None:
        """Rebuild in place what a container holds."""
        if isinstance(held, set):
            pairs = [(item, self.rebuild(item)) for item in held]
            changed = [(item, other) for item, other in pairs if other is not item]
            held -= {item for item, _ in changed}
            held |= {other for _, other in changed}
            return
        for key, item in list(held.items() if isinstance(held, dict) else enumerate(held)):
            other = self.rebuild(item)
            if other is not item:
                held[key] = other

    def _fill(self, module: nn.Module) -> None:
        shadow = self.shadows[id(module)]
        attributes = drop_sharding(vars(module)) if self.sharded else dict(vars(module))
        if isinstance(shadow, _Eager):
            attributes = {n: v for n, v in attributes.items() if n in _OF_EVERY_MODULE}
        for name, value in attributes.items():
            if type(value) in _ATOMS:
                continue
            if name == HOOK:
                attributes[name] = shadow_hook(value)
            elif name not in _OF_EVERY_MODULE:
                attributes[name] = self.rebuild(value)
            elif not value:
                # Empty, as most hooks: a shadow gets its own, for hooks of ours.
                attributes[name] = type(value)()
            elif isinstance(value, dict):
                kept = list(value.items())
                attributes[name] = type(value)((n, self.rebuild(held)) for n, held in kept)
            else:
                attributes[name] = copy(value)
        # A module compiled in place runs as it is written.
        attributes.pop("_compiled_call_impl", None)
        settle_attributes(attributes)
        vars(shadow).update(attributes)
        self._copy_slots(module, shadow)
        if isinstance(shadow, nn.RNNBase):
            _renew_flat_weights(shadow)

    def _copy_slots(self, value: Any, other: Any) -> None:
        for name in _slotnames(type(other)):
            if hasattr(value, name):
                held = self.rebuild(getattr(value, name), within=False)
                object.__setattr__(other, name, held)

    def rebuild_all(self, values: Iterable[Any]) -> tuple[Any, ...]:
        """Rebuild several values."""
        return tuple(map(self.rebuild, values))

    def rebuild(self, value: Any, *, within: bool = True) -> Any:
        """Rebuild a value around the shadows of what it holds; return itself if it holds none."""
        # `within`: objects of other classes are looked into, but not those that they hold,
        # lest a module that knows its trainer make us walk through all data.
        if type(value) in _ATOMS:
            return value
        if type(value) in ProxyTypes:
            return self._rebuild_proxy(value)
        if isinstance(value, nn.Module):
            # A forward may hold the model in a wrapper that was taken off.
            return self.shadows.get(id(value), self.shadows.get(id(unwrap(value)), value))
        if isinstance(value, Tensor):
            return self.tensors.get(id(value), value)
        key = id(value), within
        if key not in self.rebuilt:
            # What holds itself finds itself here.
            self.rebuilt[key] = value, value
            self.rebuilt[key] = value, self._rebuild(value, within)
        return self.rebuilt[key][1]

    def _rebuild(self, value: Any, within: bool) -> Any:
        if isinstance(value, (list, tuple, set, frozenset)):
            return self._rebuild_items(value, within)
        if isinstance(value, dict):
            return self._rebuild_entries(value, within)
        if isinstance(value, MethodType):
            parts = value.__func__, value.__self__
            return self._remake(parts, within, value, MethodType)
        if isinstance(value, partial):
            return self._rebuild_partial(value, within)
        if isinstance(value, FunctionType):
            return self._rebuild_function(value, within)
        if isinstance(value, CellType):
            return self._rebuild_cell(value, within)
        if type(value) is ref:
            return self._remake((value(),), within, value, ref)
        plain = type(value).__dictoffset__ and not isinstance(value, (type, ModuleType))
        return self._rebuild_object(value) if within and plain else value

    def _remake(self, parts: tuple[Any, ...], within: bool, value: Any, make: Any) -> Any:
        """Make a value from its parts again if one of them is another now."""
        others = [self.rebuild(part, within=within) for part in parts]
        same = all(other is part for other, part in zip(others, parts, strict=True))
        return value if same else make(*others)

    def _rebuild_items(self, value: Any, within: bool) -> Any:
        items, make = tuple(value), getattr(type(value), "_make", type(value))
        if all(type(item) in _ATOMS for item in items):
            return value
        return self._remake(items, within, value, lambda *others: make(others))

    def _rebuild_entries(self, value: dict[Any, Any], within: bool) -> Any:
        # At once: another thread may add to it.
        keys, items = zip(*tuple(value.items()), strict=True) if value else ((), ())

        def make(*others: Any) -> Any:
            other = copy(value)
            other.update(zip(keys, others, strict=True))
            return other

        if all(type(item) in _ATOMS for item in items):
            return value
        return self._remake(items, within, value, make)

    def _rebuild_partial(self, value: partial[Any], within: bool) -> Any:
        def make(function: Any, args: Any, keywords: Any, attributes: Any) -> Any:
            other = partial(function, *args, **keywords)
            vars(other).update(attributes)
            return other

        parts = value.func, value.args, value.keywords, vars(value)
        return self._remake(parts, within, value, make)

    def _rebuild_function(self, value: FunctionType, within: bool) -> Any:
        def make(defaults: Any, keywords: Any, *cells: CellType) -> Any:
            closure = cells if cells else None
            code, names = value.__code__, value.__globals__
            other = FunctionType(code, names, value.__name__, defaults, closure)
            other.__kwdefaults__ = keywords
            vars(other).update(vars(value))
            return other

        parts = value.__defaults__, value.__kwdefaults__, *(value.__closure__ or ())
        return self._remake(parts, within, value, make)

    def _rebuild_cell(self, cell: CellType, within: bool) -> CellType:
        try:
            held = cell.cell_contents
        except ValueError:  # not set yet
            return cell
        remade: CellType = self._remake((held,), within, cell, CellType)
        return remade

    def _rebuild_object(self, value: Any) -> Any:
        attributes = dict(vars(value))
        others = {n: self.rebuild(held, within=False) for n, held in attributes.items()}
        if all(others[name] is held for name, held in attributes.items()):
            return value
        try:
            # Not by `copy`, which may run code of the class.
            other = object.__new__(type(value))
        except TypeError:
            return value
        vars(other).update(others)
        self._copy_slots(value, other)
        return other

    def _rebuild_proxy(self, value: Any) -> Any:
        try:
            target = value.__repr__.__self__
        except ReferenceError:
            return value
        return self._remake((target,), False, value, proxy)


def _make_empty(module: nn.Module) -> nn.Module:
    if isinstance(module, torch.jit.ScriptModule):
        # It cannot be copied without its weights.
        return deepcopy(module)
    kind = find_plain_class(type(module)) or type(module)
    if (kind.__module__, kind.__name__) == ("torch._dynamo.eval_frame", "OptimizedModule"):
        kind = _Eager
    shadow: nn.Module = object.__new__(kind)
    return shadow


def _refuse_cached_parametrizations(modules: Iterable[nn.Module]) -> None:
    # That cache goes by the ids of modules, which those of short-lived shadows reuse.
    if parametrize._cache_enabled and any(
        "parametrizations" in m._modules for m in modules
    ):
        raise StructureError(
            "a parametrized model must be used outside torch.nn.utils.parametrize.cached(): "
            "its cache would give weights of another pass. Leave that context first."
        )


def _refuse_unmerging(modules: Iterable[nn.Module]) -> None:
    # PEFT takes an adapter out of its base's weights, which are shared, in the next pass.
    if any(vars(m).get("merged_adapters") and m.disable_adapters for m in modules):
        raise StructureError(
            "an adapter must not be merged while it is disabled: a pass would change the "
            "model's weights. Call model.unmerge_adapter() first."
        )


def _renew_flat_weights(shadow: nn.RNNBase) -> None:
    """Let a recurrent layer notice when its weights are replaced."""
    # They are kept in a second list, compared by weak references with those in use.
    weights = [getattr(shadow, name, None) for name in shadow._flat_weights_names]
    references = [None if weight is None else ref(weight) for weight in weights]
    vars(shadow).update(_flat_weights=weights, _flat_weight_refs=references)
