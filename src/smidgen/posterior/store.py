"""`save` and `load_saved`: posteriors in folders, subsets and deltas in single files.

The folder of a posterior holds `config.json`, `posterior.safetensors` and a `README.md`
card, and no pickle. A save is whole or not at all. A load checks the digest over all that
the folder says (`runtime.artifact`), then the schema, every type, shape, index and number and,
where it matters, the hash of the base model's weights.
"""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError, SmidgenError, StoreError, as_path
from smidgen.outputs.likelihood import describe, from_description
from smidgen.outputs.links import Link
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.base import (
    Calibration,
    Posterior,
    SampleCalibration,
    describe_calibration,
)
from smidgen.posterior.choice import Choice
from smidgen.posterior.registry import POSTERIORS
from smidgen.runtime.artifact import (
    DIGEST,
    MALFORMED,
    Taken,
    fill_folder,
    find_keys,
    read_folder,
    reading,
    require_digest,
    require_finite,
    require_schema,
    seal_folder,
)
from smidgen.runtime.files import new_folder, recover, refuse_taken
from smidgen.runtime.guard import fingerprint
from smidgen.runtime.memory import available_bytes, format_bytes
from smidgen.runtime.reading import (
    convert_json,
    make_from_json,
    parse_object,
    read_whole,
)
from smidgen.runtime.writing.claim import RUN_NOTE
from smidgen.runtime.writing.rules_note import RULES_NOTE
from smidgen.sparse.architectures import PlainNetwork
from smidgen.weights.delta import Delta
from smidgen.weights.subset import Subset

_SCHEMA = 3
_CONFIG, _TENSORS, _CARD = "config.json", "posterior.safetensors", "README.md"
# The settings of every kind, and their types.
_TYPES: dict[str, Any] = {
    "method": str,
    "temperature": float,
    "num_data": int,
    "likelihood": dict,
    "fingerprint": str,
    "subset": dict,
    "tuning": dict | None,
}
# Those that a folder may lack.
_OPTIONAL: dict[str, Any] = {"choice": dict}
_ADVICE = "Save the posterior again."
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
        with new_folder(path, overwrite=overwrite) as work:
            _write(thing, work)
            # Somebody may have written there meanwhile.
            refuse_taken_posterior(path, overwrite=overwrite)
        return path
    if not isinstance(thing, Delta | Subset):
        raise ArgumentError(
            f"thing must be a posterior, a Delta or a Subset, got {type(thing).__name__}. "
            "The order is (thing, path)."
        )
    if os.path.exists(path) and not (overwrite and _kind_of_file(path) is type(thing)):
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
def load_saved(path: str | Path, model: nn.Module | Problem) -> Posterior: ...


@overload
def load_saved(path: str | Path, model: None = None) -> Any: ...


def load_saved(path: str | Path, model: nn.Module | Problem | None = None) -> Any:
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
    # Not Path's own question, which raises on a name that is too long.
    if not os.path.isfile(path):
        return _load_posterior(path, model)
    return Delta.load(path) if _kind_of_file(path) is Delta else Subset.from_file(path)


def refuse_taken_posterior(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that holds anything but a posterior to be replaced."""
    refuse_taken(
        folder,
        overwrite=overwrite,
        needed="*.safetensors",
        written=(_CONFIG, _TENSORS, _CARD, RUN_NOTE, RULES_NOTE),
        what="posterior",
    )


def _kind_of_file(path: Path) -> type[Delta] | type[Subset] | None:
    keys = find_keys(path)
    return next((kind for name, kind in _FILES.items() if name in keys), None)


def find_posterior_digest(posterior: Posterior) -> str:
    """Hash all that a posterior is: the digest of its folder, saved or not."""
    config, tensors = _pack(posterior)
    return str(seal_folder(config, tensors)[DIGEST])


def read_posterior_digest(folder: Path) -> str | None:
    """Read the digest of the posterior that is saved in a folder; None where none is."""
    if not os.path.isfile(folder / _TENSORS):
        return None
    with reading(folder / _CONFIG, "posterior's config", _ADVICE):
        config = parse_object(read_whole(folder / _CONFIG))
        require_digest(config)
        return str(config[DIGEST])


def _write(posterior: Posterior, folder: Path) -> None:
    config, tensors = _pack(posterior)
    for name, tensor in tensors.items():
        try:
            require_finite(name, tensor)
        except StoreError as error:
            # What `load` would refuse.
            raise StoreError(
                f"the posterior cannot be saved: {error}. Fit it again."
            ) from error
    fill_folder(folder / _CONFIG, folder / _TENSORS, config, tensors)
    (folder / _CARD).write_text(posterior.card(), encoding="utf-8")


def _pack(posterior: Posterior) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Split a posterior into the config and the tensors of its folder."""
    tensors, settings = posterior.pack()
    stored = _stored_fields(type(posterior))
    if "subset" in stored:
        indices, settings["subset"] = posterior.subset.to_tensors()
        tensors = {**indices, **tensors}
    if "fingerprint" in stored:
        settings["fingerprint"] = posterior.fingerprint
    config = {
        "schema": _SCHEMA,
        "method": posterior.method,
        "temperature": posterior.temperature,
        "likelihood": describe(posterior.likelihood),
        "num_data": posterior.num_data,
        "tuning": describe_calibration(posterior.calibration),
        **settings,
    }
    if posterior.choice is not None:
        config["choice"] = posterior.choice.to_json()
    return config, tensors


def _stored_fields(kind: type[Posterior]) -> set[str]:
    """What a kind takes as arguments; what it derives itself is not stored."""
    return {entry.name for entry in fields(kind) if entry.init}


def _load_posterior(folder: Path, model: nn.Module | Problem | None) -> Posterior:
    recover(folder)
    made_by = "Make one with smidgen.save or 'smidgen fit'."
    advice = _ADVICE if os.path.isdir(folder) else made_by
    path = folder / _CONFIG
    stored, config = read_folder(
        path, folder / _TENSORS, what="saved posterior", advice=advice
    )
    require_schema(folder, config.pop("schema", None), _SCHEMA, "posterior")
    with reading(path, "posterior's config", _ADVICE):
        kind = _check_config(config)
    try:
        tensors = Taken(stored)
        problem = _find_problem(config, tensors, model)
        common = _unpack_common(kind, tensors, config, problem)
        posterior = kind.unpack(tensors, config, problem, common)
        tensors.refuse_rest()
    except StoreError as error:
        raise StoreError(f"{folder} cannot be loaded: {_end(error)}") from error
    except SmidgenError as error:
        raise StoreError(f"{folder} does not fit this model: {_end(error)}") from error
    except MALFORMED as error:
        raise StoreError(
            f"{folder} does not hold what a posterior holds ({error!r:.200}). {_ADVICE}"
        ) from error
    return posterior


def _check_config(config: dict[str, Any]) -> type[Posterior]:
    """Find the kind of a posterior, and check the type of each of its settings."""
    method = config.get("method")
    if not isinstance(method, str) or method not in POSTERIORS:
        raise StoreError(
            f"'method' must be one of {', '.join(POSTERIORS)}, got {str(method)[:40]!r}"
        )
    kind = POSTERIORS[method].posterior
    derived = {"subset", "fingerprint"} - _stored_fields(kind)
    types = {n: t for n, t in _TYPES.items() if n not in derived}
    types |= kind.packed_types
    types |= {name: wanted for name, wanted in _OPTIONAL.items() if name in config}
    for name in sorted(types.keys() ^ config.keys()):
        fault = "is missing" if name in types else "is unknown"
        raise StoreError(f"the setting {name[:80]!r} {fault}")
    for name, wanted in types.items():
        config[name] = convert_json(config[name], wanted, name)
    if config["num_data"] < 0:
        raise StoreError(f"'num_data' must be 0 or more, got {config['num_data']}")
    return kind


def _end(error: Exception) -> str:
    """A message that ends with a stop, and with what to do if it does not say."""
    said = str(error).rstrip(".")
    return f"{said}." if ". " in said else f"{said}. {_ADVICE}"


def _find_problem(
    config: dict[str, Any], tensors: Taken, model: nn.Module | Problem | None
) -> Problem:
    """The model a posterior belongs to: the caller's, or as its folder describes it."""
    if model is not None:
        return as_problem(model)
    if config.get("model") is None:
        raise StoreError(
            "model must be given: the folder does not say how its model is built. Pass "
            "the model that the posterior was fitted to."
        )
    plain = make_from_json(PlainNetwork, config["model"])
    if len(plain.hidden) > len(tensors):
        raise StoreError("its network has more layers than it has tensors")
    with torch.device("meta"):
        size = sum(value.nbytes for value in plain.build().state_dict().values())
    free = available_bytes()
    if free is not None and size > free:
        raise StoreError(
            f"its network takes {format_bytes(size)}, and {format_bytes(free)} are free. "
            "Load it on a larger machine."
        )
    return Problem(plain.build())


def _unpack_common(
    kind: type[Posterior],
    tensors: Taken,
    config: dict[str, Any],
    problem: Problem,
) -> dict[str, Any]:
    """What every posterior has, by the name of its argument."""
    common = {
        "likelihood": from_description(config["likelihood"]),
        "num_data": config["num_data"],
        "temperature": config["temperature"],
        "calibration": _unpack_calibration(kind, config["tuning"]),
    }
    if "choice" in config:
        common["choice"] = Choice.from_json(config["choice"])
    stored = _stored_fields(kind)
    if "fingerprint" in stored:
        digest = fingerprint(problem.model)
        if config["fingerprint"] != digest:
            raise StoreError(
                "it was fitted to another model: its weights' hash is "
                f"{config['fingerprint'][:12]}…, this model's is {digest[:12]}…. Load the "
                "model it was fitted to; for a copy of that in another dtype, load with that "
                "model, take posterior.for_copy(model, copy) and save it."
            )
        common["fingerprint"] = digest
    if "subset" in stored:
        common["subset"] = Subset.from_tensors(tensors, config["subset"])
    return common


def _unpack_calibration(
    kind: type[Posterior], stored: dict[str, Any] | None
) -> Calibration | SampleCalibration | None:
    if stored is None:
        return None
    if kind.linearised:
        plain = dict(convert_json(stored, dict, "tuning"))
        link = plain.pop("link", None)
        made = make_from_json(Calibration, plain)
        return made if link is None else replace(made, link=make_from_json(Link, link))
    return make_from_json(SampleCalibration, stored)
