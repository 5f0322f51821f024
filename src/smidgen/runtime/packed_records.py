"""Many records in one file: gzipped JSON lines, a name and a record on each.

The first line counts the others and holds a digest over all names and records. The same
records give the same bytes: lines are sorted by name, and the file notes no time.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path

from smidgen.errors import StoreError
from smidgen.runtime.artifact import (
    DIGEST,
    check_seal,
    dump_json,
    reading,
    require_digest,
    seal,
)
from smidgen.runtime.files import write_bytes
from smidgen.runtime.reading import MOST_JSON, open_regular, parse_object
from smidgen.runtime.record import Record

SUFFIX = ".jsonl.gz"
_CHUNK = 2**16
# A gzip bomb is a thousand times its size; records shrink to a tenth or twentieth.
_MOST_RATIO, _MOST_BYTES = 200, 2**30
_RECORDS = "records"
_ADVICE = "Take it from where it was made, or run its study again."


def is_packed(path: str | Path) -> bool:
    """Say whether a path is named like a file of many records."""
    return Path(path).name.endswith(SUFFIX)


def pack_records(path: str | Path, records: Mapping[str, Record]) -> Path:
    """Write records by name to one file, whole or not at all."""
    packed = {name: records[name].to_fields() for name in sorted(records)}
    entries = [
        seal({_RECORDS: {name: fields[DIGEST] for name, fields in packed.items()}}),
        *({"name": name, "record": fields} for name, fields in packed.items()),
    ]
    entries[0][_RECORDS] = len(packed)
    text = "".join(f"{dump_json(entry, separators=(',', ':'))}\n" for entry in entries)
    return write_bytes(path, gzip.compress(text.encode("utf-8"), mtime=0))


def unpack_records(path: str | Path) -> dict[str, Record]:
    """Read the records by name that `pack_records` wrote."""
    with reading(path, "file of packed records", _ADVICE):
        with open_regular(path) as (file, size):
            first, *entries = [parse_object(line) for line in _read_lines(file, size)]
        require_digest(first)
        records: dict[str, Record] = {}
        digests = {}
        for entry in entries:
            if entry.keys() != {"name", "record"} or not isinstance(entry["name"], str):
                raise StoreError("a line does not hold a name and a record")
            name = entry["name"]
            records[name] = Record.from_fields(entry["record"], f"record {name[:80]!r}")
            digests[name] = entry["record"][DIGEST]
        if first.get(_RECORDS) != len(entries) or len(records) < len(entries):
            raise StoreError(
                f"it has {len(entries)} records, not those its first line counts"
            )
        check_seal({**first, _RECORDS: digests})
    return records


def _read_lines(file: BufferedReader, size: int) -> Iterator[bytes]:
    """Unpack line by line; refuse a file that would fill the memory, or is cut off."""
    most = min(_MOST_BYTES, 2**20 + _MOST_RATIO * size)
    stream, rest, total = zlib.decompressobj(wbits=31), b"", 0
    while not stream.eof:
        chunk = stream.unconsumed_tail or file.read(_CHUNK)
        if not chunk:
            raise StoreError("it was cut off")
        try:
            piece = stream.decompress(chunk, 16 * _CHUNK)
        except zlib.error as error:
            raise StoreError(f"it cannot be unpacked ({error})") from error
        total += len(piece)
        if total > most:
            raise StoreError(f"it would unpack to more than {most:,} bytes")
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
        if len(rest) > MOST_JSON:
            raise StoreError(f"a line has more than {MOST_JSON:,} bytes")
    if rest or stream.unused_data or file.read(1):
        raise StoreError("something was added to its end")
