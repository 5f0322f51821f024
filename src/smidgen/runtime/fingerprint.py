"""A hash that tells one set of weights from another."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import lru_cache
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError

_Seen = tuple[tuple[tuple[int, int], ...], tuple[int, ...]]
_KNOWN: WeakKeyDictionary[nn.Module, tuple[_Seen, str]] = WeakKeyDictionary()
# So many entries of a tensor are looked at where its version might not tell.
_PROBED = 1024


def fingerprint(model: nn.Module, *, without: Collection[str] = ()) -> str:
    """Hash names, types, shapes and bytes of all weights and persistent buffers.

    Args:
        model: The model; it is only read.
        without: Names that do not count: those of a new head, say.

    Returns:
        A SHA-256 in hexadecimal.
    """
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
    """Hash a model, or remember its hash if no tensor was moved or written since.

    Args:
        model: The model; it is only read.

    Returns:
        The same as `fingerprint`, unless single weights of a large tensor were changed
        behind autograd's back.
    """
    tensors = [*model.parameters(), *model.buffers()]
    seen = tuple((each.data_ptr(), each._version) for each in tensors), _probes(tensors)
    known = _KNOWN.get(model)
    if known is None or known[0] != seen:
        known = _KNOWN[model] = (seen, fingerprint(model))
    return known[1]


@torch.no_grad()
def _probes(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    """Hash some entries of every tensor, those of a kind together."""
    # A fused optimiser and a write to `.data` leave the version as it was. A step changes
    # practically every weight, so a sample of them tells.
    samples = defaultdict(list)
    for each in tensors:
        flat = each.flatten()
        if len(flat) > _PROBED:
            flat = flat[torch.tensor(_probed(len(flat)), device=flat.device)]
        samples[each.device, each.dtype].append(flat)
    joined = (torch.cat(each).view(torch.uint8).cpu() for each in samples.values())
    return tuple(hash(each.numpy().tobytes()) for each in joined)


# Plain numbers: a tensor would be kept on the device, or under the mode, of the first call.
@lru_cache(maxsize=1024)
def _probed(count: int) -> tuple[int, ...]:
    """Which entries of a flat tensor are looked at: spread over its rows and columns."""
    # Multiples of the golden ratio: no stride of a matrix is one of theirs.
    return tuple(int(count * (i * 0.6180339887498949 % 1)) for i in range(_PROBED))


def require_fingerprint(model: nn.Module, wanted: str) -> None:
    """Refuse a model whose weights are not those a posterior was fitted to.

    Args:
        model: The model about to be used.
        wanted: The hash of the weights it should have.

    Raises:
        ArgumentError: If its weights differ.
    """
    found = quick_fingerprint(model)
    if found != wanted:
        raise ArgumentError(
            "model must be the one the posterior was fitted to: its weights' hash is "
            f"{found[:12]}…, the posterior's {wanted[:12]}…. Fit a new posterior, or load "
            "that model."
        )
