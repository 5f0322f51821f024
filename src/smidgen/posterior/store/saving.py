"""`save` and `load`: posteriors in folders, subsets and deltas in single files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, overload

from safetensors import SafetensorError, safe_open
from torch import nn

from smidgen.errors import ArgumentError, StoreError
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Posterior
from smidgen.posterior.store.folder import load_posterior, save_posterior
from smidgen.weights.delta import Delta
from smidgen.weights.subset import Subset


def save(
    thing: Posterior | Delta | Subset, path: str | Path, *, overwrite: bool = False
) -> Path:
    """Write a posterior to a folder, or a delta or a subset to a file.

    Args:
        thing: What to save.
        path: Where to; it must not exist yet, or `overwrite` must be given.
        overwrite: Replace one of its kind that is there already.

    Returns:
        The path.

    Raises:
        ArgumentError: If it is nothing that can be saved.
        StoreError: If something is there already and may not be replaced.
    """
    path = Path(path)
    if isinstance(thing, Posterior):
        save_posterior(thing, path, overwrite=overwrite)
        return path
    if not isinstance(thing, Delta | Subset):
        raise ArgumentError(
            f"thing must be a posterior, a Delta or a Subset, got {type(thing).__name__}."
        )
    if path.exists() and not (overwrite and _kind_of_file(path) is type(thing)):
        raise StoreError(
            f"{path} exists already. Give another path, or pass overwrite=True to replace "
            f"a {type(thing).__name__} there."
        )
    if isinstance(thing, Delta):
        thing.save(path)
    else:
        thing.to_file(path)
    return path


@overload
def load(path: str | Path, model: nn.Module | Problem) -> Posterior: ...


@overload
def load(path: str | Path, model: None = None) -> Any: ...


def load(path: str | Path, model: nn.Module | Problem | None = None) -> Any:
    """Read what `save` wrote.

    Args:
        path: The folder of a posterior, or the file of a delta or a subset.
        model: The model that a posterior was fitted to, with the very weights; one of
            SSVI needs the structure only, and none where its folder says how to build it.

    Returns:
        The posterior, delta or subset.

    Raises:
        StoreError: If it is missing, damaged, or of another model.
    """  # noqa: DOC502
    path = Path(path)
    if not path.is_file():
        return load_posterior(path, model)
    return Delta.load(path) if _kind_of_file(path) is Delta else Subset.from_file(path)


def _kind_of_file(path: Path) -> type[Delta] | type[Subset] | None:
    """Tell by the header of a file what is in it; None if it is neither."""
    try:
        with safe_open(str(path), framework="pt") as file:
            names = file.metadata() or {}
    except (OSError, SafetensorError):
        return None
    kinds: dict[str, type[Delta] | type[Subset]] = {
        "smidgen-delta": Delta,
        "smidgen-subset": Subset,
    }
    return next((kind for name, kind in kinds.items() if name in names), None)
