"""Checkpoints of long runs: one safetensors file, whole or not at all, no pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from smidgen.errors import StoreError
from smidgen.runtime.files import read_tensor_file, write_tensor_file

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
    write_tensor_file(path, tensors, about, key=_KEY)


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
    advice = "Delete it to start anew."
    tensors, stored = read_tensor_file(path, key=_KEY, what="checkpoint", advice=advice)
    current = json.loads(json.dumps(dict(about)))
    names = [n for n in {**current, **stored} if stored.get(n) != current.get(n)]
    if names:
        raise StoreError(
            f"checkpoint {path} is of another run: there {names[0]} is "
            f"{stored.get(names[0])!r}, here {current.get(names[0])!r}. Delete it, or name "
            "another file."
        )
    return tensors
