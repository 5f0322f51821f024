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
from torch.overrides import BaseTorchFunctionMode
from torch.random import fork_rng
from torch.utils.hooks import RemovableHandle

from smidgen.errors import ArgumentError, DataError

_Result = TypeVar("_Result")
_State = tuple[tuple[tuple[int, int], ...], tuple[int, ...]]
_KNOWN: WeakKeyDictionary[nn.Module, tuple[_State, str]] = WeakKeyDictionary()
# How many entries of each tensor are read, since its version may not tell of a change.
_PROBED = 1024


def fingerprint(model: nn.Module, *, without: Collection[str] = ()) -> str:
    """Hash (SHA-256) names, types, shapes and bytes of all weights and persistent buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        if name in without:
            continue
        if not isinstance(value, Tensor):
            digest.update(f"{name}|{value!r}|".encode())
            continue
        digest.update(f"{name}|{value.dtype}|{tuple(value.shape)}|".encode())
        flat = value.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def quick_fingerprint(model: nn.Module) -> str:
    """Hash a model, or remember its hash if no tensor was moved or written since."""
    # Single weights of a large tensor changed behind autograd's back may go unnoticed.
    state, known = _read_state(model), _KNOWN.get(model)
    if known is not None and known[0] == state:
        return known[1]
    digest = fingerprint(model)
    # Of weights that another thread wrote meanwhile, the hash is of neither state.
    if _read_state(model) == state:
        _KNOWN[model] = state, digest
    return digest


def _read_state(model: nn.Module) -> _State:
    tensors = [*model.parameters(), *model.buffers()]
    versions = tuple((tensor.data_ptr(), tensor._version) for tensor in tensors)
    return versions, _probe(tensors)


@torch.no_grad()
def _probe(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    """Hash some entries of every tensor, joined by device and dtype."""
    # A fused optimiser and a write to `.data` leave the version as it was. A step changes
    # practically every weight, so a sample of them tells.
    samples = defaultdict(list)
    for tensor in tensors:
        flat = tensor.flatten()
        if len(flat) > _PROBED:
            flat = flat[torch.tensor(_probed_indices(len(flat)), device=flat.device)]
        samples[tensor.device, tensor.dtype].append(flat)
    joined = (torch.cat(parts).view(torch.uint8).cpu() for parts in samples.values())
    return tuple(hash(sample.numpy().tobytes()) for sample in joined)


# Plain numbers: a tensor would stay on the device, or in the mode, of the first call.
@lru_cache(maxsize=1024)
def _probed_indices(count: int) -> tuple[int, ...]:
    """Choose which entries of a flat tensor are read, all over its rows and columns."""
    # Multiples of the golden ratio: no stride of a matrix is one of theirs.
    return tuple(int(count * (i * 0.6180339887498949 % 1)) for i in range(_PROBED))


def require_fingerprint(model: nn.Module, expected: str) -> None:
    """Refuse a model whose weights are not those a posterior was fitted to."""
    digest = quick_fingerprint(model)
    if digest != expected:
        raise ArgumentError(
            "model must be the one the posterior was fitted to: its weights' hash is "
            f"{digest[:12]}…, the posterior's {expected[:12]}…. Fit a new posterior, or load "
            "that model."
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
        elif isinstance(module, nn.MultiheadAttention):
            _run_unfused(module)


def _run_unfused(module: nn.MultiheadAttention) -> None:
    """Rule out the fused pass of attention, for which no draws can be run at once."""
    # Training mode would too, but the module's own code and hooks may look at that.
    own, this = vars(module).get("forward"), ref(module)
    kind: Any = type(module)
    if hasattr(own, "unfused"):
        return

    def forward(*args: Any, **kwargs: Any) -> Any:
        with BaseTorchFunctionMode():
            return own(*args, **kwargs) if own else kind.forward(this(), *args, **kwargs)

    forward.unfused = True  # type: ignore[attr-defined]
    vars(module)["forward"] = forward


def _set_scripted_mode(module: torch.jit.ScriptModule, dropout: bool) -> None:
    # One that was frozen has no mode any more.
    if hasattr(module, "training"):
        module.training = dropout and "Norm" not in module.original_name


@dataclass(eq=False)
class ShadowOrigin:
    """Which modules, by id, a shadow stands for, and the ids of its own."""

    modules: Mapping[int, nn.Module]
    own: frozenset[int]
    # Once a forward was seen to run the shadow, and nothing that it stands for.
    checked: bool = False

    def __deepcopy__(self, _: Any) -> ShadowOrigin:
        return ShadowOrigin(self.modules, self.own, self.checked)

    def find_path(self, module: nn.Module) -> str:
        """Name a module as its model does."""
        for model in self.modules.values():
            for path, part in model.named_modules():
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
        elif id(module) in origin.modules:
            strays.append(module)
            # At once, before it counts in the caller's buffers.
            raise _refuse_stray(origin, module)

    with _watch_calls(see):
        yield
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
