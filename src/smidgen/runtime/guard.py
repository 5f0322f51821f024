"""Guards of what is the caller's: a model's identity, its calls, and torch's random numbers.

A hash tells one set of weights from another, so that a posterior refuses another model.
Passes go to shadows of a model, in modes of their own, and must not run the model itself.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from threading import Lock, RLock, current_thread, local, main_thread
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.random import fork_rng
from torch.utils.hooks import RemovableHandle

from smidgen.errors import ArgumentError, DataError
from smidgen.runtime.keeping.structure import Structure, find_structure, unwrap
from smidgen.runtime.processes.whole_weights import gather_tensor, is_sharded
from smidgen.runtime.sites.experts import EXPERTS_MARK
from smidgen.runtime.sites.rewrites import SITED, open_sites
from smidgen.runtime.storage.offload import list_in_memory, read_weights
from smidgen.runtime.storage.quantised import list_parts
from smidgen.types import Forward

_Result = TypeVar("_Result")
_State = tuple[list[tuple[int, int]], list[Tensor]]
_KNOWN: WeakKeyDictionary[nn.Module, tuple[_State, str]] = WeakKeyDictionary()
# How many entries of each tensor are read, since its version may not tell of a change; so many
# stand beside one another, since memory gives them at once.
_PROBED, _BESIDE = 1024, 8
# Types of the bytes of an entry: NaN equals itself in them.
_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


# How torch says that a model has no such attribute, which a wrapper of it has.
_WRAPPED = "attribute 'module'", "attribute '_orig_mod'"


def fingerprint(model: nn.Module, *, without: Collection[str] = ()) -> str:
    """Hash (SHA-256) names, types, shapes and bytes of all weights and persistent buffers."""
    digest = hashlib.sha256()
    for name, value in read_weights(unwrap(model)):
        if name in without:
            continue
        if not isinstance(value, Tensor):
            digest.update(f"{name}|{value!r}|".encode())
            continue
        digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        flat = gather_tensor(value).detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def quick_fingerprint(model: nn.Module) -> str:
    """Hash a model, or remember its hash if no tensor was moved or written since."""
    # Single weights of a large tensor changed behind autograd's back may go unnoticed.
    model = unwrap(model)
    structure = find_structure(model)
    if structure is None and is_sharded(model):
        # Processes that remember differently would wait for one another.
        return fingerprint(model)
    state, known = _read_state(model, structure), _KNOWN.get(model)
    if known is not None and _is_same(known[0], state):
        return known[1]
    digest = fingerprint(model)
    # Of weights that another thread wrote meanwhile, the hash is of neither state.
    if _is_same(_read_state(model, structure), state):
        _KNOWN[model] = state, digest
    return digest


def _read_state(model: nn.Module, structure: Structure | None) -> _State:
    if structure is None:
        tensors = [part for each in list_in_memory(model) for part in list_parts(each)]
        probe = _Probe(tensors)
    else:
        tensors = structure.tensors
        probe = structure.keep(_Probe, lambda: _Probe(tensors))
    versions = [(tensor.data_ptr(), tensor._version) for tensor in tensors]
    return versions, probe.read()


def _is_same(before: _State, now: _State) -> bool:
    return (
        before[0] == now[0]
        and len(before[1]) == len(now[1])
        and all(map(torch.equal, before[1], now[1]))
    )


class _Probe:
    """Reads some entries of every tensor, joined by device and dtype."""

    # A fused optimiser and a write to `.data` leave the version as it was. A step changes
    # practically every weight, so a sample of them tells.

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._small = defaultdict(list)
        self._large = defaultdict(list)
        indices: dict[tuple[int, torch.device], Tensor] = {}
        for tensor in tensors:
            key = tensor.device, tensor.dtype
            # A view, or if there is none the tensor, to be copied whenever it is read.
            flat = tensor.detach()
            flat = flat.view(-1) if flat.is_contiguous() else flat
            if flat.numel() <= _PROBED:
                self._small[key].append(flat)
                continue
            count, device = flat.numel() // _BESIDE, flat.device
            if (count, device) not in indices:
                chosen = torch.tensor(_probed_indices(count), device=device)
                indices[count, device] = chosen
            rows = _write_rows(flat) if flat.dim() == 1 else flat
            self._large[key].append((rows, indices[count, device]))

    @torch.no_grad()
    def read(self) -> list[Tensor]:
        """Read the bytes of those entries, on the CPU."""
        joined = [
            torch.cat([flat if flat.dim() == 1 else flat.flatten() for flat in group])
            for group in self._small.values()
        ]
        joined += [
            torch.cat([_write_rows(flat).index_select(0, chosen) for flat, chosen in group])
            for group in self._large.values()
        ]
        return [each.view(_BYTES.get(each.itemsize, torch.int64)).cpu() for each in joined]


def _write_rows(values: Tensor) -> Tensor:
    """Write a large tensor as rows of entries that stand side by side, without a rest."""
    if values.is_contiguous() and values.shape[-1] == _BESIDE and values.dim() == 2:
        return values
    flat = values.flatten()
    return flat[: len(flat) // _BESIDE * _BESIDE].view(-1, _BESIDE)


# Plain numbers: a tensor would stay on the device, or in the mode, of the first call.
@lru_cache(maxsize=1024)
def _probed_indices(count: int) -> tuple[int, ...]:
    """Choose which eights of a flat tensor are read, all over its rows and columns."""
    # Multiples of the golden ratio: no stride of a matrix is one of theirs. In order, which
    # is faster to read.
    places = range(_PROBED // _BESIDE)
    return tuple(sorted(int(count * (i * 0.6180339887498949 % 1)) for i in places))


def require_fingerprint(model: nn.Module, expected: str) -> None:
    """Refuse a model whose weights are not those a posterior was fitted to."""
    digest = quick_fingerprint(model)
    if digest != expected:
        raise ArgumentError(
            "model must be the one the posterior was fitted to: its weights' hash is "
            f"{digest[:12]}…, the posterior's {expected[:12]}…. Fit a new posterior, or load "
            "that model; for a copy of it in another dtype, take posterior.for_copy(that "
            "model, copy)."
        )


RECOMPUTES = "gradient_checkpointing"
"""The flag of Hugging Face's modules that compute activations again in a backward pass."""


@contextmanager
def disable_recomputing(model: nn.Module) -> Iterator[None]:
    """Switch off gradient checkpointing in a model of our own, so that each module runs once."""
    recomputing = [m for m in model.modules() if getattr(m, RECOMPUTES, False) is True]
    try:
        for module in recomputing:
            setattr(module, RECOMPUTES, False)
        yield
    finally:
        for module in recomputing:
            setattr(module, RECOMPUTES, True)


def set_modes(shadow: nn.Module, *, dropout: bool = False) -> None:
    """Put a shadow into evaluation mode, and have it run every layer it holds.

    With `dropout` it trains, except layers with running statistics.
    """
    for module in shadow.modules():
        if isinstance(module, torch.jit.ScriptModule):
            _set_scripted_mode(module, dropout)
            continue
        attributes = vars(module)
        attributes["training"] = dropout and not isinstance(module, _NormBase)
        # Recomputing activations only takes time here, and runs layers twice.
        if attributes.get(RECOMPUTES) is True:
            attributes[RECOMPUTES] = False
        # torch's fused transformer layers do not call the layers they hold, so hooks would
        # see nothing. The process-wide switch would also slow the caller's own passes.
        if isinstance(module, nn.TransformerEncoder):
            attributes["use_nested_tensor"] = False
        elif isinstance(module, nn.TransformerEncoderLayer):
            attributes["activation_relu_or_gelu"] = 0
        elif isinstance(module, SITED) or hasattr(type(module), EXPERTS_MARK):
            open_sites(module)


def _set_scripted_mode(module: torch.jit.ScriptModule, dropout: bool) -> None:
    # One that was frozen has no mode any more.
    if hasattr(module, "training"):
        module.training = dropout and "Norm" not in module.original_name


@dataclass(eq=False, slots=True)
class ShadowOrigin:
    """Which modules, by id, a shadow stands for, and the ids of its own."""

    modules: Mapping[int, ref[nn.Module]]
    own: frozenset[int]
    # Once a forward was seen to run the shadow, and nothing that it stands for.
    checked: bool = False
    # While a call has it to itself, with the structure of the model if there is one.
    lent: bool = False
    structure: Structure | None = None
    # The forward that a shadow which is lent again was checked with.
    forward: Forward | None = None

    def __deepcopy__(self, _: Any) -> ShadowOrigin:
        return ShadowOrigin(self.modules, self.own, self.checked)

    def stands_for(self, module: nn.Module) -> bool:
        """Whether a module is one of the original."""
        known = self.modules.get(id(module))
        return known is not None and known() is module

    def find_path(self, module: nn.Module) -> str:
        """Name a module as its model does."""
        for known in self.modules.values():
            model = known()
            for path, part in model.named_modules() if model is not None else ():
                if part is module:
                    return path
        return ""


@contextmanager
def require_runs(origin: ShadowOrigin, is_used: Callable[[], bool]) -> Iterator[None]:
    """Refuse a first pass that runs something else; `is_used` finds out if no call is seen."""
    if origin.checked:
        yield
        return
    runs, strays = [], []

    def see(module: nn.Module) -> None:
        if id(module) in origin.own:
            runs.append(True)
        elif origin.stands_for(module):
            strays.append(module)
            # At once, before it counts in the caller's buffers.
            raise _refuse_stray(origin, module)

    with _watch_calls(see):
        try:
            yield
        except AttributeError as error:
            if not str(error).endswith(_WRAPPED):
                raise
            raise DataError(
                f"forward must use the model as it is, got one that looks into it ({error}): "
                "wrappers of torch.compile and parallel training are taken off. Write "
                "forward=lambda model, batch: model(...), without .module or ._orig_mod."
            ) from error
    if strays:
        raise _refuse_stray(origin, strays[0])
    if not runs and not is_used():
        raise DataError(
            "forward must run the model it is given, got one that runs another, perhaps the "
            "original by a name of its own: passes go to a copy that shares its weights. "
            "Write forward=lambda model, batch: ... and use that model."
        )
    origin.checked = True


def _refuse_stray(origin: ShadowOrigin, module: nn.Module) -> DataError:
    path = origin.find_path(module)
    return DataError(
        f"forward must run the model it is given, got one that runs {path!r} of the original: "
        "passes go to a copy that shares its weights, and it is reached by a global name, or "
        "in an object that is not copied. Keep it in an attribute, list or dict of the model."
        if path
        else "forward must run the model it is given, got one that runs the original: passes "
        "go to a copy that shares its weights. Write forward=lambda model, batch: ... and use "
        "that model."
    )


class _Watch(local):
    """Who is shown the modules that are called in this thread."""

    see: Callable[[nn.Module], None] | None = None


_WATCH = _Watch()
_WATCHING = Lock()
# One hook for all who watch, or none.
_HOOKS: list[RemovableHandle] = []


@contextmanager
def _watch_calls(see: Callable[[nn.Module], None]) -> Iterator[None]:
    """Show every module that is called in this thread, before it runs; others run as ever."""
    # torch only has hooks for all modules of all threads, so it is there while needed: a
    # model made by torch.compile that another thread calls meanwhile warns of it.
    before, _WATCH.see = _WATCH.see, see
    with _WATCHING:
        _HOOKS.append(_HOOKS[0] if _HOOKS else register_module_forward_pre_hook(_show))
    try:
        yield
    finally:
        _WATCH.see = before
        with _WATCHING:
            handle = _HOOKS.pop()
            if not _HOOKS:
                handle.remove()


def _show(module: nn.Module, *_: object) -> None:
    if _WATCH.see is not None:
        _WATCH.see(module)


# Held by whoever seeds torch's generator, which belongs to the whole process.
_SEEDING = RLock()


@contextmanager
def preserve_random_state(model: nn.Module, *, seeding: bool = False) -> Iterator[None]:
    """Leave torch's own generator as it was; no inference mode, where none could train.

    Those who seed it wait for one another, in whatever thread. Others restore it only in the
    main thread, and not while another seeds: what threads of the caller drew meanwhile would
    be drawn again.
    """
    devices = []
    # Else nothing can be on a GPU, and all parameters need not be looked at.
    if torch.cuda.is_initialized():
        devices = sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})
    with torch.inference_mode(False):
        if seeding:
            with _SEEDING, fork_rng(devices=devices):
                yield
            return
        main = current_thread() is main_thread()
        # Not held meanwhile: the batches may come from a thread that seeds.
        before = _unless_seeding(partial(_read_random_states, devices)) if main else None
        try:
            yield
        finally:
            if before is not None:
                _unless_seeding(partial(_write_random_states, devices, before))


def _unless_seeding(call: Callable[[], _Result]) -> _Result | None:
    """Call a function unless another thread is seeding."""
    if not _SEEDING.acquire(blocking=False):
        return None
    try:
        return call()
    finally:
        _SEEDING.release()


def _read_random_states(devices: Iterable[int]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in devices)]


def _write_random_states(devices: Iterable[int], states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    for device, state in zip(devices, states[1:], strict=True):
        torch.cuda.set_rng_state(state, device)
