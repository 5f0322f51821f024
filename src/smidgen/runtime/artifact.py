"""What every saved folder shares: a JSON config, tensors, and the hash that ties them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from smidgen.errors import StoreError

HASH = "tensors_sha256"
"""Where a config has the hash of its tensors' file."""


def hash_file(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_config(path: Path, *, schema: int, what: str, made_by: str) -> dict[str, Any]:
    """Read a config of the schema this version knows.

    Args:
        path: The file.
        schema: The schema.
        what: What the folder should be: "posterior".
        made_by: What makes one, for the refusal.

    Returns:
        The config.

    Raises:
        StoreError: If the file is missing, damaged or of another schema.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        found = config["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path.parent} is not a saved {what} ({error}). Make one with {made_by}."
        ) from error
    if found != schema:
        raise StoreError(
            f"{path.parent} has {what} schema {found}, this smidgen reads {schema}. Use "
            "the version that wrote it."
        )
    return dict(config)


def read_tensors(path: Path, config: dict[str, Any], *, what: str) -> dict[str, Tensor]:
    """Read tensors whose file has the hash that the config says.

    Args:
        path: The file.
        config: The config beside it.
        what: What the folder is, for the refusal.

    Returns:
        The tensors.

    Raises:
        StoreError: If the file cannot be read, or was changed.
    """
    try:
        intact = hash_file(path) == config[HASH]
        tensors = load_file(str(path)) if intact else {}
    except (OSError, KeyError, SafetensorError) as error:
        raise StoreError(f"{path} cannot be read ({error}). Save it again.") from error
    if not intact:
        raise StoreError(
            f"{path} was truncated or edited: its hash is not the one beside it. Save the "
            f"{what} again."
        )
    return tensors
