"""`Record`: what was run, with which settings, on which machine, and its results."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from smidgen.runtime.artifact import (
    check_seal,
    dump_json,
    read_sealed_json,
    reading,
    require_schema,
    seal,
)
from smidgen.runtime.files import write_text
from smidgen.runtime.reading import make_from_json
from smidgen.runtime.showing.html import Printed, PrintedTable, ShownAsTable
from smidgen.runtime.system.process import count_cores

RECORD_SCHEMA = 1
BASELINES = ("map", "temperature")
"""Methods that all others are compared with: the point estimate, without and with a temperature."""
_ADVICE = "Make one with 'smidgen evaluate --json' or 'smidgen demo'."
_SHOWN = 80
_SOURCES = ("smidgen", "smidgen_studies")
_PACKAGES = ("smidgen", "torch", "numpy", "scipy", "safetensors", "transformers")


@cache
def _source() -> str:
    """Hash the source code: between releases a version says too little."""
    digest = sha256()
    for package in _SOURCES:
        # By name: this file may move to another folder without hashing less.
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for path in sorted(Path(folder).rglob("*.py")):
                digest.update(path.relative_to(folder).as_posix().encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "source": _source()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _machine() -> dict[str, Any]:
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": count_cores(),
    }


def _shorten(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Write values as JSON, each in at most one line."""
    written = {
        # A record in memory may hold what a file may not.
        name: json.dumps(value, default=str, ensure_ascii=False)
        for name, value in values.items()
    }
    return [
        (name, text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…")
        for name, text in written.items()
    ]


@dataclass(frozen=True)
class Record(ShownAsTable):
    """One run as plain JSON: nothing in it needs a model to be read.

    Args:
        kind: What was run: "demo", "run", "evaluate", "ramp", "bayestune", "cell" of a study, …
        config: Every choice that shaped the run.
        results: The numbers.
        seed: The seed of the run, if it had one.
        status: "complete", or what happened instead.
    """

    kind: str
    config: Mapping[str, Any]
    results: Mapping[str, Any]
    seed: int | None = None
    status: str = "complete"
    versions: Mapping[str, str] = field(default_factory=_versions)
    machine: Mapping[str, Any] = field(default_factory=_machine)
    created: str = field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds")
    )
    schema: int = RECORD_SCHEMA

    def printed_parts(self) -> list[Printed]:
        """List what it is of, its settings and its results, long values cut."""
        seed = "" if self.seed is None else f", seed {self.seed}"
        heading = f"Record of {self.kind}: {self.status}{seed}, {self.created}"
        tables = [
            PrintedTable([(title, ""), *_shorten(values)], left=(0, 1))
            for title, values in (("config", self.config), ("results", self.results))
            if values
        ]
        return [heading, *tables]

    def to_fields(self) -> dict[str, Any]:
        """List the fields and, last, a digest over them all."""
        return seal(asdict(self))

    def to_json(self) -> str:
        """Write as indented JSON with a digest; NaN and infinity are refused."""
        return dump_json(self.to_fields(), indent=1) + "\n"

    def save(self, path: str | Path) -> Path:
        """Write the file whole or not at all, making its folder if need be."""
        return write_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Record:
        """Read a record.

        Args:
            path: The JSON file.

        Returns:
            The record.

        Raises:
            StoreError: If the file is missing, is not a record or has another schema.
        """
        fields = read_sealed_json(path, what="smidgen record", advice=_ADVICE)
        return cls._make(fields, path)

    @classmethod
    def from_fields(cls, fields: Any, path: str | Path) -> Record:
        """Make a record of its JSON fields; `path` is for error messages."""
        with reading(path, "smidgen record", _ADVICE):
            plain = check_seal(dict(fields))
        return cls._make(plain, path)

    @classmethod
    def _make(cls, fields: Mapping[str, Any], path: str | Path) -> Record:
        require_schema(path, fields.get("schema"), RECORD_SCHEMA, "record")
        with reading(path, "smidgen record", _ADVICE):
            return make_from_json(cls, fields)
