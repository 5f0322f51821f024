"""A posterior is a folder: `config.json`, `posterior.safetensors` and a `README.md` card.

No pickle. A save is whole or not at all. A load checks the schema, the file's hash, all
shapes, all index bounds and the hash of the base model's weights.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from smidgen.errors import SmidgenError, StoreError
from smidgen.outputs.likelihood import describe, from_description
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.store import laplace, swag
from smidgen.posterior.swag import SwagPosterior
from smidgen.runtime.files import (
    HASH,
    hash_file,
    new_folder,
    read_config,
    read_tensors,
    refuse_taken,
)
from smidgen.runtime.fingerprint import fingerprint
from smidgen.weights.subset import Subset

SCHEMA = 2
KINDS_OF_POSTERIOR = {"laplace": laplace, "swag": swag}
"""What is kept of each method's posterior; a new method is a file and a row."""
_CONFIG, _TENSORS, _CARD = "config.json", "posterior.safetensors", "README.md"
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "temperature": float,
    "num_data": int,
    "fingerprint": str,
    HASH: str,
    "likelihood": dict,
    "subset": dict,
}


def save(
    posterior: LaplacePosterior | SwagPosterior,
    folder: str | Path,
    *,
    overwrite: bool = False,
) -> Path:
    """Write a posterior to a folder, whole or not at all.

    Args:
        posterior: The posterior.
        folder: Where to; it must not exist yet, or `overwrite` must be given.
        overwrite: Replace a posterior that is there already.

    Returns:
        The folder.

    Raises:
        StoreError: If something is there already and may not be replaced.
    """  # noqa: DOC502
    folder = Path(folder)
    refuse_taken_posterior(folder, overwrite=overwrite)
    with new_folder(folder) as work:
        _write(posterior, work)
    return folder


def load(
    folder: str | Path, model: nn.Module | Problem
) -> LaplacePosterior | SwagPosterior:
    """Read a posterior and check that it belongs to this model.

    Args:
        folder: What `save` wrote.
        model: The base model, with the very weights it was fitted to.

    Returns:
        The posterior.

    Raises:
        StoreError: If the folder is missing, damaged, or of another model.
    """
    folder = Path(folder)
    config = _read_config(folder)
    tensors = read_tensors(folder / _TENSORS, config, what="posterior")
    base = as_problem(model).model
    found = fingerprint(base)
    if config["fingerprint"] != found:
        raise StoreError(
            f"{folder} was fitted to another model: its weights' hash is "
            f"{config['fingerprint'][:12]}…, this model's is {found[:12]}…. Load the "
            "model it was fitted to."
        )
    try:
        kind = KINDS_OF_POSTERIOR[config["method"]]
        subset = Subset.from_tensors(tensors, config["subset"])
        common = {
            "subset": subset,
            "likelihood": from_description(config["likelihood"]),
            "fingerprint": found,
            "num_data": config["num_data"],
            "temperature": config["temperature"],
        }
        return kind.unpack(tensors, config, as_problem(model), common)
    except StoreError:
        raise
    except SmidgenError as error:
        raise StoreError(f"{folder} does not fit this model: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"{folder / _CONFIG} was edited or is incomplete: {error!r}. Save it again."
        ) from error


def refuse_taken_posterior(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds something, unless it is a posterior to be replaced."""
    refuse_taken(
        folder,
        overwrite=overwrite,
        needed=_TENSORS,
        written=(_CONFIG, _TENSORS, _CARD),
        what="posterior",
    )


def _write(posterior: LaplacePosterior | SwagPosterior, folder: Path) -> None:
    kind = KINDS_OF_POSTERIOR[posterior.method]
    indices, header = posterior.subset.to_tensors()
    tensors, settings = kind.pack(posterior)
    plain = {name: each.detach().cpu().contiguous() for name, each in tensors.items()}
    save_file({**indices, **plain}, str(folder / _TENSORS), metadata={"format": "smidgen"})
    config = {
        "schema": SCHEMA,
        "method": posterior.method,
        **settings,
        "temperature": posterior.temperature,
        "likelihood": describe(posterior.likelihood),
        "num_data": posterior.num_data,
        "fingerprint": posterior.fingerprint,
        HASH: hash_file(folder / _TENSORS),
        "tuning": asdict(posterior.tuning) if posterior.tuning else None,
        "subset": header,
    }
    text = json.dumps(config, indent=1, allow_nan=False)
    (folder / _CONFIG).write_text(text + "\n", encoding="utf-8")
    card = kind.card(posterior)
    (folder / _CARD).write_text(card, encoding="utf-8")


def _read_config(folder: Path) -> dict[str, Any]:
    config = read_config(
        folder / _CONFIG,
        schema=SCHEMA,
        what="posterior",
        made_by="smidgen.save or 'smidgen fit'",
    )
    if config.get("method") not in KINDS_OF_POSTERIOR:
        raise StoreError(
            f"{folder / _CONFIG} must have 'method' one of "
            f"{', '.join(KINDS_OF_POSTERIOR)}, got {config.get('method')!r}. Use the "
            "version that wrote it."
        )
    wanted = {**_FIELDS, **KINDS_OF_POSTERIOR[config["method"]].FIELDS}
    for name, kind in wanted.items():
        if not isinstance(config.get(name), kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            raise StoreError(
                f"{folder / _CONFIG} must have {name!r} of type "
                f"{' or '.join(each.__name__ for each in kinds)}, got "
                f"{config.get(name)!r}. Save the posterior again."
            )
    return config
