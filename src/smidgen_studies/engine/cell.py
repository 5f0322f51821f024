"""`Cell`: one piece of work of a study; `Job`: what a kind is given to do it.

A cell is data × seed × what to do. Its key is a hash of everything that shapes its result,
so a cell is the same wherever and whenever it is done, and whichever study it belongs to.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from smidgen.errors import ArgumentError
from smidgen.runtime.record import Record
from smidgen_studies.engine.settings import read_settings
from smidgen_studies.kinds import find_kind

# Raised when a kind computes something else from the same settings.
_VERSION = 1
_DIGITS = 12


@dataclass(frozen=True)
class Cell:
    """One piece of work; its name and `test_to_train` do not shape the result.

    `kind` is a name in `kinds.KINDS` or the dotted name of a user's own, `data` and
    `settings` are as the study's file has them, and `needs` must be done before it.
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
        """A hash of everything that shapes the result."""
        shaping = {
            "version": _VERSION,
            "kind": self.kind,
            "data": dict(self.data),
            "seed": self.seed,
            "settings": dict(self.settings),
            "needs": [cell.key for cell in self.needs],
        }
        text = json.dumps(shaping, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]

    @property
    def slug(self) -> str:
        """A name for files: data, seed and cell for readers, the key for the engine."""
        words = f"{self.data.get('name', 'data')}-seed{self.seed}-{self.name}".lower()
        return f"{re.sub(r'[^a-z0-9.]+', '-', words).strip('-')}-{self.key}"

    @property
    def title(self) -> str:
        """Its name for readers."""
        return f"{self.data.get('name')}, seed {self.seed}, {self.name}"

    # Both are parsed once: workers are sent what the checks before the run have parsed.
    @cached_property
    def parsed_settings(self) -> Any:
        """The settings as the kind's own dataclass."""
        kind = find_kind(self.kind)
        return read_settings(kind.Settings, self.settings, f"cells {self.name!r}")

    @cached_property
    def parsed_data(self) -> Any:
        """The description of the data as the kind's own dataclass."""
        kind = find_kind(self.kind)
        return read_settings(kind.Data, self.data, f"data {self.data.get('name')!r}")

    @property
    def defaults(self) -> dict[str, Any]:
        """The values of all settings that the study does not name, as JSON has them."""
        values = vars(self.parsed_settings).items()
        unnamed = {name: value for name, value in values if name not in self.settings}
        plain: dict[str, Any] = json.loads(json.dumps(unnamed))
        return plain

    @property
    def reported_methods(self) -> Sequence[str] | None:
        """The methods that its record will have; None if a user's kind does not say."""
        return getattr(self.parsed_settings, "reported_methods", None)

    @property
    def on_processor(self) -> bool:
        """Whether it stays on the processor, whatever devices there are."""
        return bool(getattr(find_kind(self.kind), "ON_PROCESSOR", False))


@dataclass(frozen=True)
class FinishedCell:
    """A cell that is done: its record, and the folder it left for others."""

    name: str
    record: Record
    artifact: Path


@dataclass(frozen=True)
class Job:
    """What a kind is given to do a cell: `data` and `settings` as its own dataclasses.

    `root` is the folder of the data files and `artifact` a folder to make if other cells
    need something. `work` is for notes of its own, which outlive a killed run. Large models
    go to `device`, as `torch.device` takes it.
    """

    data: Any
    seed: int
    settings: Any
    root: Path | None
    needs: tuple[FinishedCell, ...]
    artifact: Path
    work: Path
    device: str = "cpu"


def locate(name: str, root: Path | None, data: str) -> Path:
    """Turn a name in a data set's description into a path, whether or not it exists."""
    path = Path(name).expanduser()
    if path.is_absolute():
        return path
    if root is None:
        raise ArgumentError(
            f"data {data!r} must have a folder to be read from, got none. Pass --data "
            "FOLDER."
        )
    return root / path
