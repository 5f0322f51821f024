"""`load`: predictors, posteriors, deltas and subsets, from here or from the Hugging Face Hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, overload

from torch import nn

from smidgen.errors import ArgumentError, as_path
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Posterior
from smidgen.posterior.store import load_saved
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
) -> Any: ...


def load(
    path: str | Path,
    model: nn.Module | Problem | None = None,
    *,
    revision: str | None = None,
    device: str | None = None,
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
    ready = find_ready_folder(path)
    if ready is None:
        return load_saved(path, model)
    if model is not None:
        return load_saved(ready.posterior, model)
    return load_predictor(ready, device=device or "cpu")
