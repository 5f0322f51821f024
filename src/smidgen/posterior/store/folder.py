"""A posterior is a folder: `config.json`, `posterior.safetensors` and a `README.md` card.

No pickle. A save is whole or not at all. A load checks the schema, the file's hash, all
shapes, all index bounds and, where it matters, the hash of the base model's weights.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from smidgen.errors import SmidgenError, StoreError
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
from smidgen.runtime.fingerprint import fingerprint
from smidgen.sparse.architectures import PlainNetwork
from smidgen.weights.subset import Subset

SCHEMA = 2
_CONFIG, _TENSORS, _CARD = "config.json", "posterior.safetensors", "README.md"
# SSVI's folders of schema 1 had a file of their own.
_OLD_SCHEMA, _OLD_TENSORS = 1, "sparse.safetensors"
_TYPES: dict[str, type | tuple[type, ...]] = {
    "temperature": float,
    "num_data": int,
    "likelihood": dict,
    "fingerprint": str,
    "subset": dict,
    HASH: str,
}


def save_posterior(posterior: Posterior, folder: Path, *, overwrite: bool = False) -> None:
    """Write a posterior to a folder, whole or not at all.

    Args:
        posterior: The posterior.
        folder: Where to; it must not exist yet, or `overwrite` must be given.
        overwrite: Replace a posterior that is there already.

    Raises:
        StoreError: If something is there already and may not be replaced.
    """  # noqa: DOC502
    refuse_taken_posterior(folder, overwrite=overwrite)
    with new_folder(folder) as work:
        _write(posterior, work)


def load_posterior(folder: Path, model: nn.Module | Problem | None) -> Posterior:
    """Read a posterior and check that it belongs to this model.

    Args:
        folder: What `save_posterior` wrote.
        model: The base model. Not needed where the folder says how it is built.

    Returns:
        The posterior.

    Raises:
        StoreError: If the folder is missing, damaged, or of another model.
    """
    config = _read_config(folder)
    old = (folder / _OLD_TENSORS).exists()
    path = folder / (_OLD_TENSORS if old else _TENSORS)
    tensors = read_tensors(path, config, what="posterior")
    try:
        problem = _problem(config, model)
        kind = POSTERIORS[config["method"]].posterior
        common = _common(kind, tensors, config, problem)
        return kind.unpack(tensors, config, problem, common)
    except StoreError as error:
        raise StoreError(f"{folder}: {error}") from error
    except (SmidgenError, SafetensorError) as error:
        raise StoreError(f"{folder} does not fit this model: {error}") from error
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise StoreError(
            f"{folder / _CONFIG} was edited or is incomplete: {error!r}. Save it again."
        ) from error


def refuse_taken_posterior(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds something, unless it is a posterior to be replaced."""
    refuse_taken(
        folder,
        overwrite=overwrite,
        needed="*.safetensors",
        written=(_CONFIG, _TENSORS, _OLD_TENSORS, _CARD),
        what="posterior",
    )


def _write(posterior: Posterior, folder: Path) -> None:
    tensors, settings = posterior.pack()
    stored = _stored(type(posterior))
    if "subset" in stored:
        indices, settings["subset"] = posterior.subset.to_tensors()
        tensors = {**indices, **tensors}
    if "fingerprint" in stored:
        settings["fingerprint"] = posterior.fingerprint
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    save_file(plain, str(folder / _TENSORS), metadata={"format": "smidgen"})
    calibration = posterior.calibration
    config = {
        "schema": SCHEMA,
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


def _stored(kind: type[Posterior]) -> set[str]:
    """What a kind takes as arguments; what it derives itself is not stored."""
    return {each.name for each in fields(kind) if each.init}


def _problem(config: dict[str, Any], model: nn.Module | Problem | None) -> Problem:
    """The model a posterior belongs to: the one given, or as its folder describes it."""
    if model is not None:
        return as_problem(model)
    if config.get("model") is None:
        raise StoreError(
            "model must be given: the folder does not say how its model is built. Pass "
            "the model that the posterior was fitted to."
        )
    return Problem(PlainNetwork(**config["model"]).build())


def _common(
    kind: type[Posterior],
    tensors: dict[str, Tensor],
    config: dict[str, Any],
    problem: Problem,
) -> dict[str, Any]:
    """What every posterior has, by the name of its argument."""
    common = {
        "likelihood": _likelihood(config, problem),
        "num_data": config.get("num_data", 0),
        "temperature": config.get("temperature", 1.0),
        "calibration": _calibration(kind, config.get("tuning")),
    }
    stored = _stored(kind)
    if "fingerprint" in stored:
        found = fingerprint(problem.model)
        if config["fingerprint"] != found:
            raise StoreError(
                "it was fitted to another model: its weights' hash is "
                f"{config['fingerprint'][:12]}…, this model's is {found[:12]}…. Load the "
                "model it was fitted to."
            )
        common["fingerprint"] = found
    if "subset" in stored:
        common["subset"] = Subset.from_tensors(tensors, config["subset"])
    return common


def _likelihood(config: dict[str, Any], problem: Problem) -> Any:
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


def _calibration(
    kind: type[Posterior], stored: dict[str, Any] | None
) -> Calibration | SampleCalibration | None:
    if stored is None:
        return None
    values: dict[str, Any] = {
        n: tuple(v) if isinstance(v, list) else v for n, v in stored.items()
    }
    return Calibration(**values) if kind.linearised else SampleCalibration(**values)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG
    old = (folder / _OLD_TENSORS).exists()
    config = read_config(
        path,
        schema=_OLD_SCHEMA if old else SCHEMA,
        what="posterior",
        made_by="smidgen.save or 'smidgen fit'",
    )
    method = str(config.get("method"))
    if method not in POSTERIORS:
        raise StoreError(
            f"{path} must have 'method' one of {', '.join(POSTERIORS)}, got {method!r}. "
            "Use the version that wrote it."
        )
    kind = POSTERIORS[method].posterior
    derived = {"subset", "fingerprint"} - _stored(kind)
    types = {n: t for n, t in _TYPES.items() if not old and n not in derived}
    for name, allowed in {**types, **kind.packed_types}.items():
        if not isinstance(config.get(name), allowed):
            names = allowed if isinstance(allowed, tuple) else (allowed,)
            raise StoreError(
                f"{path} must have {name!r} of type "
                f"{' or '.join(each.__name__ for each in names)}, got "
                f"{config.get(name)!r}. Save the posterior again."
            )
    return config
