"""`Cell`: one piece of work of a study; `Job`: what it is given when it is done.

A cell is data × seed × what to do. Its key is a hash of all that shapes its result, so a
cell is the same wherever and whenever it is done, and by whichever study.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, get_args

from smidgen.errors import ArgumentError, did_you_mean
from smidgen.runtime.record import Record
from smidgen_studies.engine.settings import fits, hints_of, words

# Raised when a kind changes what it computes from the same settings.
_VERSION = 1
_DIGITS = 12
Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Cell:
    """One piece of work.

    Args:
        name: What the study calls it; names do not shape results.
        kind: What is done: a name of `kinds.KINDS`, or of a module of one's own.
        data: The data set's description, its name among it.
        seed: The seed, or the number of the split.
        settings: What the kind is told.
        needs: Cells that must be done before, of the same data.
        test_to_train: What the study says of its splits, for the record to note.
    """

    name: str
    kind: str
    data: Mapping[str, Any]
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[Cell, ...] = ()
    test_to_train: float = 0.0

    @cached_property
    def key(self) -> str:
        """A hash of all that shapes the result."""
        shaping = {
            "version": _VERSION,
            "kind": self.kind,
            "data": dict(self.data),
            "seed": self.seed,
            "settings": dict(self.settings),
            "needs": [each.key for each in self.needs],
        }
        text = json.dumps(shaping, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]

    @property
    def slug(self) -> str:
        """A name for files: data, seed and cell for people, the key for us."""
        words = f"{self.data.get('name', 'data')}-seed{self.seed}-{self.name}".lower()
        return f"{re.sub(r'[^a-z0-9.]+', '-', words).strip('-')}-{self.key}"


@dataclass(frozen=True)
class Done:
    """A cell that is done: its record, and the folder it left for others."""

    name: str
    record: Record
    artifact: Path


@dataclass(frozen=True)
class Job:
    """What a kind is given to do a cell.

    Args:
        data: The data set's description.
        seed: The seed, or the number of the split.
        settings: What it is told.
        root: The folder that the files of `data` are in, if one was given.
        needs: What the cells before it left.
        artifact: A folder to be made, if other cells need one.
        work: A folder for notes; what a killed run left there is still there.
        device: Where large models go, as `torch.device` takes it.
    """

    data: Mapping[str, Any]
    seed: int
    settings: Mapping[str, Any]
    root: Path | None
    needs: tuple[Done, ...]
    artifact: Path
    work: Path
    device: str = "cpu"

    @property
    def folder(self) -> Path:
        """The folder of the data.

        Raises:
            ArgumentError: If none was given.
        """
        return located("", self.root, str(self.data.get("name")))


def located(name: str, root: Path | None, data: str) -> Path:
    """Find where a file or folder is that a data set's description names.

    Args:
        name: The name: under the folder of the data, or with its own path.
        root: The folder of the data, if one was given.
        data: The name of the data set.

    Returns:
        The path; nobody has looked whether anything is there.

    Raises:
        ArgumentError: If it is under a folder, and none was given.
    """
    own = Path(name).expanduser()
    if own.is_absolute():
        return own
    if root is None:
        raise ArgumentError(
            f"data {data!r} must have a folder to be read from, got none. Pass --data "
            "FOLDER."
        )
    return root / own


def read_settings(kind: type[Settings], given: Mapping[str, Any], where: str) -> Settings:
    """Fill a dataclass of settings from a study's file.

    Args:
        kind: The dataclass.
        given: Values by name; lists become tuples.
        where: What they are of, for errors.

    Returns:
        The settings.

    Raises:
        ArgumentError: If a name is unknown, one without a default is missing, or a value
            is not what it may be.
    """
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ArgumentError(
            f"{where} has no setting {unknown[0]!r}. It has {', '.join(known) or 'none'}."
        )
    missing = [
        name
        for name, each in known.items()
        if name not in given and each.default is MISSING and each.default_factory is MISSING
    ]
    if missing:
        raise ArgumentError(f"{where} must say its {missing[0]!r}, got nothing. Add it.")
    values = {name: _frozen(value) for name, value in given.items()}
    for name, hint in hints_of(kind).items():
        if name in values and not fits(values[name], hint):
            known_ones = [each for each in get_args(hint) if isinstance(each, str)]
            raise ArgumentError(
                f"{name} of {where} must be {words(hint)}, got {given[name]!r}."
                f"{did_you_mean(str(given[name]), known_ones)}"
            )
    try:
        return kind(**values)
    except ArgumentError as error:
        raise ArgumentError(f"{where}: {error}") from error


def _frozen(value: Any) -> Any:
    return (
        tuple(value)
        if isinstance(value, Sequence) and not isinstance(value, str)
        else value
    )
