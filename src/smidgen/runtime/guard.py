"""Guards of what is the caller's: the identity of a model, and torch's random numbers.

A hash tells one set of weights from another, so that a posterior refuses another model.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from threading import RLock, current_thread, main_thread
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.random import fork_rng

from smidgen.errors import ArgumentError

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
