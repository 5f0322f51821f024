"""Many records in one file: gzipped JSON lines, a name and a record on each.

The same records give the same bytes: lines are sorted by name, and the file notes no time.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from smidgen.errors import StoreError
from smidgen.runtime.files import write_bytes
from smidgen.runtime.record import Record

SUFFIX = ".jsonl.gz"


def is_packed(path: str | Path) -> bool:
    """Say whether a path is named like a file of many records."""
    return Path(path).name.endswith(SUFFIX)


def pack_records(path: str | Path, records: Mapping[str, Record]) -> Path:
    """Write records by name to one file, whole or not at all."""
    try:
        lines = [
            json.dumps(
                {"name": name, "record": asdict(records[name])},
                separators=(",", ":"),
                allow_nan=False,
            )
            for name in sorted(records)
        ]
    except (TypeError, ValueError) as error:
        raise StoreError(f"a record holds a value JSON cannot: {error}.") from error
    text = "".join(f"{line}\n" for line in lines)
    return write_bytes(path, gzip.compress(text.encode("utf-8"), mtime=0))


def unpack_records(path: str | Path) -> dict[str, Record]:
    """Read the records by name that `pack_records` wrote."""
    try:
        lines = gzip.decompress(Path(path).read_bytes()).decode("utf-8").splitlines()
        entries = [json.loads(line) for line in lines]
        return {
            entry["name"]: Record.from_fields(entry["record"], path) for entry in entries
        }
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path} must be a file of packed records, got {error!r}."
        ) from error
