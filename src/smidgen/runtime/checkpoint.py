"""Checkpoints of long runs: one safetensors file, whole or not at all, no pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from smidgen.errors import StoreError
from smidgen.runtime.artifact import (
    read_tensor_file,
    reading,
    require_finite,
    write_tensor_file,
)

_KEY = "smidgen-checkpoint"
_ADAM = frozenset({"step", "exp_avg", "exp_avg_sq"})
_SGD = frozenset({"momentum_buffer"})
# The only tensors that may hold NaN or infinity: scores of a rate that diverged and of epochs
# without validation data, and what an optimiser remembers of gradients too large to square.
_UNBOUNDED = frozenset({"scores", "history", "traces", "optimiser", "widths"})


def write_checkpoint(
    path: str | Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]
) -> None:
    """Write the state of a run; only a run with the same description `about` may resume it."""
    write_tensor_file(path, tensors, about, key=_KEY)


def read_checkpoint(path: str | Path, about: Mapping[str, Any]) -> dict[str, Tensor] | None:
    """Read the state of an interrupted run with this description; None if there is no file."""
    path = Path(path)
    if not path.exists():
        return None
    advice = "Delete it to start anew."
    tensors, stored = read_tensor_file(
        path, key=_KEY, what="checkpoint file", advice=advice
    )
    current = json.loads(json.dumps(dict(about)))
    names = [n for n in {**current, **stored} if stored.get(n) != current.get(n)]
    if names:
        raise StoreError(
            f"checkpoint {path} is of another run: there {names[0]} is "
            f"{stored.get(names[0])!r}, here {current.get(names[0])!r}. Delete it, or name "
            "another file."
        )
    with reading(path, "checkpoint file", advice):
        for name, tensor in tensors.items():
            if not _UNBOUNDED.intersection(name.split("/")):
                require_finite(name, tensor)
    return tensors


def pack_optimiser(optimiser: Optimizer) -> dict[str, Tensor]:
    """List what an optimiser remembers of its parameters, as `number/name`."""
    states = optimiser.state_dict()["state"]
    return {
        f"{number}/{name}": torch.as_tensor(value).clone()
        for number, state in states.items()
        for name, value in state.items()
        if value is not None
    }


def unpack_optimiser(optimiser: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the state of `pack_optimiser` in an optimiser made in the same way."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    states: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, name = key.split("/")
        # A count of steps, or one number for each entry that the optimiser moves.
        moved = getattr(optimiser, "state_shape", parameters[int(number)].shape)
        shape = () if name == "step" else tuple(moved)
        if tuple(value.shape) != shape or not value.is_floating_point():
            raise StoreError(
                f"the optimiser's {key} must be floats of shape {shape}, got {value.dtype} "
                f"of {tuple(value.shape)}"
            )
        states.setdefault(int(number), {})[name] = value
    for state in states.values():
        if state.keys() != _find_names(optimiser):
            raise StoreError(f"the optimiser remembers {', '.join(sorted(state))} alone")
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": states, "param_groups": groups})


def _find_names(optimiser: Optimizer) -> frozenset[str]:
    """Name what an optimiser remembers of a parameter."""
    names: frozenset[str] = getattr(optimiser, "state_names", _ADAM)
    return _SGD if isinstance(optimiser, torch.optim.SGD) else names


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Name tensors `prefix/name`, so that several parts go into one checkpoint."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def of_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Select the tensors named `prefix/name`, under their plain names."""
    start = f"{prefix}/"
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
