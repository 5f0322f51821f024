"""`save` and `load`: posteriors in folders, subsets and deltas in single files.

The folder of a posterior holds `config.json`, `posterior.safetensors` and a `README.md`
card, and no pickle. A save is whole or not at all. A load checks the schema, the file's
hash, all shapes, all index bounds and, where it matters, the hash of the base model's weights.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, overload

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from smidgen.errors import ArgumentError, SmidgenError, StoreError, as_path
from smidgen.outputs.likelihood import Categorical, describe, from_description
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.base import Calibration, Posterior, SampleCalibration
from smidgen.posterior.registry import POSTERIORS
from smidgen.runtime.files import (
    HASH,
    hash_file,
    new_folder,
    read_config,
    read_tensors,
    refuse_taken,
)
from smidgen.runtime.guard import fingerprint
from smidgen.sparse.architectures import PlainNetwork
from smidgen.weights.delta import Delta
from smidgen.weights.subset import Subset

_SCHEMA = 2
_CONFIG, _TENSORS, _CARD = "config.json", "posterior.safetensors", "README.md"
# SSVI's folders of schema 1 named their tensors differently.
_OLD_SCHEMA, _OLD_TENSORS = 1, "sparse.safetensors"
_TYPES: dict[str, type | tuple[type, ...]] = {
    "temperature": float,
    "num_data": int,
    "likelihood": dict,
    "fingerprint": str,
    "subset": dict,
    HASH: str,
}
# What the header of a file says is in it.
_FILES: dict[str, type[Delta] | type[Subset]] = {
    "smidgen-delta": Delta,
    "smidgen-subset": Subset,
}


def save(
    thing: Posterior | Delta | Subset, path: str | Path, *, overwrite: bool = False
) -> Path:
    """Write a posterior to a folder, or a delta or a subset to a file.

    Args:
        thing: What to save.
        path: Where to write it. Nothing may be there yet, unless `overwrite` is set.
        overwrite: Replace something of the same kind.

    Returns:
        The path.

    Raises:
        ArgumentError: If thing is none of these.
        StoreError: If the path is taken by something that may not be replaced.
    """
    path = as_path("path", path)
    if isinstance(thing, Posterior):
        refuse_taken_posterior(path, overwrite=overwrite)
        with new_folder(path) as work:
            _write(thing, work)
        return path
    if not isinstance(thing, Delta | Subset):
        raise ArgumentError(
            f"thing must be a posterior, a Delta or a Subset, got {type(thing).__name__}. "
            "The order is (thing, path)."
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
        model: The model that a posterior was fitted to, with the same weights. A posterior
            of SSVI needs a model of the same structure only, and none where its folder
            says how to build it.

    Returns:
        The posterior, delta or subset.

    Raises:
        StoreError: If it is missing, damaged, or of another model.
    """  # noqa: DOC502
    path = as_path("path", path)
    if not path.is_file():
        return _load_posterior(path, model)
    return Delta.load(path) if _kind_of_file(path) is Delta else Subset.from_file(path)


def refuse_taken_posterior(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds anything but a posterior to be replaced."""
    refuse_taken(
        folder,
        overwrite=overwrite,
        needed="*.safetensors",
        written=(_CONFIG, _TENSORS, _OLD_TENSORS, _CARD),
        what="posterior",
    )


def _kind_of_file(path: Path) -> type[Delta] | type[Subset] | None:
    try:
        with safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
    except (OSError, SafetensorError):
        return None
    return next((kind for name, kind in _FILES.items() if name in header), None)


def _write(posterior: Posterior, folder: Path) -> None:
    tensors, settings = posterior.pack()
    stored = _stored_fields(type(posterior))
    if "subset" in stored:
        indices, settings["subset"] = posterior.subset.to_tensors()
        tensors = {**indices, **tensors}
    if "fingerprint" in stored:
        settings["fingerprint"] = posterior.fingerprint
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(plain, str(folder / _TENSORS), metadata={"format": "smidgen"})
    calibration = posterior.calibration
    config = {
        "schema": _SCHEMA,
        "method": posterior.method,
        "temperature": posterior.temperature,
        "likelihood": describe(posterior.likelihood),
        "num_data": posterior.num_data,
        HASH: hash_file(folder / _TENSORS),
        "tuning": None if calibration is None else asdict(calibration),
        **settings,
    }
    text = json.dumps(config, indent=1, allow_nan=False)
    (folder / _CONFIG).write_text(text + "\n", encoding="utf-8")
    (folder / _CARD).write_text(posterior.card(), encoding="utf-8")


def _stored_fields(kind: type[Posterior]) -> set[str]:
    """What a kind takes as arguments; what it derives itself is not stored."""
    return {entry.name for entry in fields(kind) if entry.init}


def _load_posterior(folder: Path, model: nn.Module | Problem | None) -> Posterior:
    old = (folder / _OLD_TENSORS).exists()
    config = _read_config(folder / _CONFIG, old=old)
    path = folder / (_OLD_TENSORS if old else _TENSORS)
    tensors = read_tensors(path, config, what="posterior")
    try:
        problem = _find_problem(config, model)
        kind = POSTERIORS[config["method"]].posterior
        common = _unpack_common(kind, tensors, config, problem)
        return kind.unpack(tensors, config, problem, common)
    except StoreError as error:
        raise StoreError(f"{folder}: {error}") from error
    except (SmidgenError, SafetensorError) as error:
        raise StoreError(f"{folder} does not fit this model: {error}") from error
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise StoreError(
            f"{folder / _CONFIG} was edited or is incomplete: {error!r}. Save it again."
        ) from error


def _read_config(path: Path, *, old: bool) -> dict[str, Any]:
    schema, origin = _OLD_SCHEMA if old else _SCHEMA, "smidgen.save or 'smidgen fit'"
    config = read_config(path, schema=schema, what="posterior", made_by=origin)
    method = str(config.get("method"))
    if method not in POSTERIORS:
        raise StoreError(
            f"{path} must have 'method' one of {', '.join(POSTERIORS)}, got {method!r}. "
            "Use the version that wrote it."
        )
    kind = POSTERIORS[method].posterior
    derived = {"subset", "fingerprint"} - _stored_fields(kind)
    types = {n: t for n, t in _TYPES.items() if not old and n not in derived}
    for name, allowed in {**types, **kind.packed_types}.items():
        if not isinstance(config.get(name), allowed):
            options = allowed if isinstance(allowed, tuple) else (allowed,)
            raise StoreError(
                f"{path} must have {name!r} of type "
                f"{' or '.join(option.__name__ for option in options)}, got "
                f"{config.get(name)!r}. Save the posterior again."
            )
    return config


def _find_problem(config: dict[str, Any], model: nn.Module | Problem | None) -> Problem:
    """The model a posterior belongs to: the caller's, or as its folder describes it."""
    if model is not None:
        return as_problem(model)
    if config.get("model") is None:
        raise StoreError(
            "model must be given: the folder does not say how its model is built. Pass "
            "the model that the posterior was fitted to."
        )
    return Problem(PlainNetwork(**config["model"]).build())


def _unpack_common(
    kind: type[Posterior],
    tensors: dict[str, Tensor],
    config: dict[str, Any],
    problem: Problem,
) -> dict[str, Any]:
    """What every posterior has, by the name of its argument."""
    common = {
        "likelihood": _unpack_likelihood(config, problem),
        "num_data": config.get("num_data", 0),
        "temperature": config.get("temperature", 1.0),
        "calibration": _unpack_calibration(kind, config.get("tuning")),
    }
    stored = _stored_fields(kind)
    if "fingerprint" in stored:
        digest = fingerprint(problem.model)
        if config["fingerprint"] != digest:
            raise StoreError(
                "it was fitted to another model: its weights' hash is "
                f"{config['fingerprint'][:12]}…, this model's is {digest[:12]}…. Load the "
                "model it was fitted to."
            )
        common["fingerprint"] = digest
    if "subset" in stored:
        common["subset"] = Subset.from_tensors(tensors, config["subset"])
    return common


def _unpack_likelihood(config: dict[str, Any], problem: Problem) -> Any:
    """What the outputs mean; the first sparse folders did not say."""
    if config.get("likelihood") is not None:
        return from_description(config["likelihood"])
    if problem.likelihood is not None:
        return problem.likelihood
    if config.get("model") is not None:
        return Categorical(config["model"]["classes"])
    raise StoreError(
        "it does not say what its outputs mean. Pass smidgen.Problem(model, likelihood) "
        "for the model."
    )


def _unpack_calibration(
    kind: type[Posterior], stored: dict[str, Any] | None
) -> Calibration | SampleCalibration | None:
    if stored is None:
        return None
    values: dict[str, Any] = {
        n: tuple(v) if isinstance(v, list) else v for n, v in stored.items()
    }
    return Calibration(**values) if kind.linearised else SampleCalibration(**values)
