"""A training in mid-course as a folder: resumed, it goes on bit for bit.

Network and active set, the optimiser's state of the active weights, and the state of
every source of randomness. No pickle; written whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from smidgen.atomic import new_folder, refuse_taken
from smidgen.errors import SmidgenError, StoreError
from smidgen.sparse.alternation import refill
from smidgen.sparse.folder import fill, header_of, tensors_of, weights_of
from smidgen.sparse.network import SparseNetwork

SCHEMA = 1
_STATE, _TENSORS = "training.json", "training.safetensors"


def has_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a training to be resumed; what is none is refused."""
    # Every epoch replaces the folder, so nothing else may be in it.
    refuse_taken(
        folder,
        overwrite=True,
        needed=_STATE,
        written=(_STATE, _TENSORS),
        what="checkpoint",
    )
    return (folder / _STATE).exists()


def save_checkpoint(
    folder: Path,
    network: SparseNetwork,
    optimiser: torch.optim.Optimizer,
    generators: Mapping[str, torch.Generator],
    notes: Mapping[str, Any],
) -> None:
    """Write the state of a training, replacing an earlier one.

    Args:
        folder: Where to.
        network: The network.
        optimiser: Its optimiser.
        generators: Sources of randomness besides the network's and torch's own.
        notes: What else to remember, as JSON: steps done, history, settings.
    """
    tensors = tensors_of(network)
    for index, held in enumerate(_parameters(optimiser)):
        for key, value in optimiser.state.get(held, {}).items():
            tensors[f"optimiser/{index}/{key}"] = torch.as_tensor(value).clone()
    for name, generator in {"network": network.generator, **generators}.items():
        tensors[f"generator/{name}"] = generator.get_state()
    tensors["generator/torch"] = torch.get_rng_state()
    header = {"schema": SCHEMA, "network": header_of(network), "notes": dict(notes)}
    with new_folder(folder) as work:
        save_file(tensors, str(work / _TENSORS))
        text = json.dumps(header, indent=1, allow_nan=False) + "\n"
        (work / _STATE).write_text(text, encoding="utf-8")


def read_notes(folder: Path) -> dict[str, Any]:
    """Read what was noted with a checkpoint.

    Args:
        folder: What `save_checkpoint` wrote.

    Returns:
        The notes.

    Raises:
        StoreError: If the file is damaged or of another version.
    """
    try:
        header = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        if header["schema"] == SCHEMA:
            return dict(header["notes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{folder} is not a checkpoint ({error}). Remove it to start anew."
        ) from error
    raise StoreError(
        f"{folder} has checkpoint schema {header['schema']}, this smidgen reads {SCHEMA}. "
        "Remove it to start anew."
    )


def restore_checkpoint(
    folder: Path,
    network: SparseNetwork,
    optimiser: torch.optim.Optimizer,
    generators: Mapping[str, torch.Generator],
) -> None:
    """Put a training back as it was.

    Args:
        folder: What `save_checkpoint` wrote.
        network: A network made in the same way.
        optimiser: Its optimiser, made in the same way.
        generators: The same sources of randomness.

    Raises:
        StoreError: If the folder is damaged or of another network.
    """
    try:
        header = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        tensors = load_file(str(folder / _TENSORS))
        for name, weights in weights_of(tensors, header["network"]).items():
            values = (weights.pattern, weights.means, weights.log_scales)
            refill(network.maps[name], *values, optimiser)
        fill(network, tensors, header["network"])
        for index, held in enumerate(_parameters(optimiser)):
            prefix = f"optimiser/{index}/"
            optimiser.state[held] = {
                key.removeprefix(prefix): value.to(held.device) if value.dim() else value
                for key, value in tensors.items()
                if key.startswith(prefix)
            }
        for name, generator in {"network": network.generator, **generators}.items():
            generator.set_state(tensors[f"generator/{name}"])
        torch.set_rng_state(tensors["generator/torch"])
    except (OSError, ValueError, KeyError, SafetensorError, SmidgenError) as error:
        raise StoreError(
            f"{folder} does not fit this training ({error}). Remove it to start anew."
        ) from error


def _parameters(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [held for group in optimiser.param_groups for held in group["params"]]
