"""Checkpoints of long runs: one safetensors file, whole or not at all, no pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from smidgen.errors import StoreError
from smidgen.runtime.files import write_bytes

_KEY = "smidgen-checkpoint"


def write_checkpoint(
    path: str | Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]
) -> None:
    """Write the state of a run, replacing an earlier one.

    Args:
        path: The file.
        tensors: The state.
        about: What the run is, as JSON takes it: a run goes on only from a checkpoint
            whose description equals its own.
    """
    plain = {name: each.detach().cpu().contiguous() for name, each in tensors.items()}
    write_bytes(path, save(plain, metadata={_KEY: json.dumps(dict(about))}))


def read_checkpoint(path: str | Path, about: Mapping[str, Any]) -> dict[str, Tensor] | None:
    """Read the state of an interrupted run.

    Args:
        path: The file.
        about: What the run is.

    Returns:
        Its tensors, or None if there is no file.

    Raises:
        StoreError: If the file is damaged, or of another run.
    """
    path = Path(path)
    if not path.exists():
        return None
    try:
        with safe_open(str(path), framework="pt") as file:
            found = json.loads((file.metadata() or {})[_KEY])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise StoreError(
            f"checkpoint {path} cannot be read ({error}). Delete it to start anew."
        ) from error
    wanted = json.loads(json.dumps(dict(about)))
    if found != wanted:
        names = [n for n in {**wanted, **found} if found.get(n) != wanted.get(n)]
        raise StoreError(
            f"checkpoint {path} is of another run: there {names[0]} is "
            f"{found.get(names[0])!r}, here {wanted.get(names[0])!r}. Delete it, or name "
            "another file."
        )
    return tensors
