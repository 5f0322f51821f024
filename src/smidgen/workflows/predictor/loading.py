"""`load`: predictors, posteriors, deltas and subsets, from here or from the Hugging Face Hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, overload

from torch import nn

from smidgen.errors import ArgumentError, StoreError, as_path
from smidgen.integrations.reading.task_note import TASK_NOTE
from smidgen.integrations.sharing.base_note import require_hub_base
from smidgen.integrations.sharing.hub import HUB_NAME, SINGLE_FILES, fetch_repository
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Posterior
from smidgen.posterior.store import load_saved
from smidgen.runtime.files import recover
from smidgen.workflows.run.ready_folder import find_ready_folder, load_predictor


@overload
def load(
    path: str | Path, model: nn.Module | Problem, *, revision: str | None = None
) -> Posterior: ...


@overload
def load(
    path: str | Path,
    model: None = None,
    *,
    revision: str | None = None,
    device: str | None = None,
    base: str | Path | None = None,
) -> Any: ...


def load(
    path: str | Path,
    model: nn.Module | Problem | None = None,
    *,
    revision: str | None = None,
    device: str | None = None,
    base: str | Path | None = None,
) -> Any:
    """Load what was saved or shared: a predictor, or a posterior beside its model.

    Args:
        path: A ready folder, the folder of a posterior, or the file of a delta or a subset;
            or the name of a repository on the Hugging Face Hub that holds one.
        model: The model that a posterior was fitted to, with the same weights. A posterior
            of SSVI needs a model of the same structure only, and none where its folder
            says how to build it.
        revision: Which version of a repository: a commit, a tag or a branch.
        device: Where a predictor computes, such as "cuda"; the CPU by default.
        base: A folder with the model that a predictor was made of, where it names one; by
            default that comes from the Hub, or from its cache.

    Returns:
        With a model, its posterior. Without one a `Predictor`, if the folder is a ready one;
        else the posterior, delta or subset.

    Raises:
        ArgumentError: If revision or device go with what they say nothing of.
        StoreError: If it is missing, damaged, or of another model.
    """  # noqa: DOC502
    path = as_path("path", path)
    if revision is not None and os.path.exists(path):
        raise ArgumentError(
            f"revision must be left out for a folder that is here, got {revision!r} for "
            f"{str(path)!r}. Versions are those of a repository on the Hub."
        )
    path = find_shared(path, revision=revision)
    ready = find_ready_folder(path)
    if ready is None:
        _refuse_without_posterior(path, model)
        _refuse_options(path, device=device, base=base)
        return load_saved(path, model)
    if model is not None:
        _refuse_options(path, device=device, base=base)
        return load_saved(ready.posterior, model)
    return load_predictor(ready, device=device or "cpu", base=base)


def find_shared(path: Path, *, revision: str | None = None, name: str = "path") -> Path:
    """Find a folder or file here, or fetch the repository of that name from the Hub.

    Args:
        path: A folder, a file, or the name of a repository.
        revision: Which version of a repository.
        name: What the path is called in errors.

    Returns:
        What is here, or the folder in the cache; of a repository with one delta or subset
        alone, its file.

    Raises:
        StoreError: If it is not here and no name of the Hub's, or what comes from there names a
            base that is no commit of the Hub.
    """  # noqa: DOC502
    recover(path)
    if os.path.exists(path):
        return path
    repository = path.as_posix()
    if revision is None and not HUB_NAME.fullmatch(repository):
        require_there(path, name)
        return path
    folder = fetch_repository(repository, revision=revision)
    require_hub_base(folder / "model")
    if (folder / TASK_NOTE).is_file() or (folder / "posterior.safetensors").is_file():
        return folder
    files = (folder / file for file in SINGLE_FILES.values())
    return next((file for file in files if file.is_file()), folder)


def require_there(path: Path, name: str) -> None:
    """Refuse the path of something saved where nothing is.

    Args:
        path: The path; it may begin with ~.
        name: What it is called in errors.

    Raises:
        StoreError: If there is neither a folder nor a file.
    """
    try:
        os.stat(path.expanduser())
    except FileNotFoundError as error:
        raise StoreError(
            f"{name} must be a folder that exists, got {str(path)!r}, and there is none. Check "
            "the spelling."
        ) from error
    except (OSError, ValueError):
        return  # A name that no file can have, say: who opens it tells.


def _refuse_without_posterior(path: Path, model: object) -> None:
    if model is None and os.path.isfile(path / TASK_NOTE):
        raise StoreError(
            f"{path} has a model and no posterior, so it says nothing of how sure it is. Fit "
            "one with 'smidgen fit', and join them with 'smidgen pack'."
        )


def _refuse_options(path: Path, **options: object) -> None:
    for name, value in options.items():
        if value is not None:
            raise ArgumentError(
                f"{name} must be left out where no predictor is loaded, got {value!r} for "
                f"{str(path)!r}. Move the model itself."
            )
