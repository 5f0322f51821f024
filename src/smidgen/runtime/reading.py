"""Reading what somebody else may have written: bounded, strict, and refused in one sentence.

Only regular files are opened, sizes are checked before anything is parsed, JSON has a
limited depth, no name twice and finite numbers, and a safetensors file is what its header
says to the last byte. What is wrong is said without the path: `artifact.reading` adds it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, fields
from io import BufferedReader
from math import isfinite, prod
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    ForwardRef,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import torch
from torch import Tensor

from smidgen.errors import StoreError
from smidgen.runtime.memory import available_bytes, format_bytes

MOST_JSON = 2**25
"""Bytes that a JSON text or the header of a safetensors file may have: 32 MiB."""
_MOST_DEPTH = 64
_LONGEST_NUMBER = 400
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LONG_DIGITS = re.compile(rb"[0-9]{%d}" % _LONGEST_NUMBER)
_KINDS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
Made = TypeVar("Made")


@contextmanager
def open_regular(path: str | Path) -> Iterator[tuple[BufferedReader, int]]:
    """Open a file to read, and tell its size; refuse devices, FIFOs, sockets and folders."""
    # O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise StoreError("it is not a regular file")
        yield file, about.st_size


def read_whole(path: str | Path, most: int = MOST_JSON) -> bytes:
    """Read a regular file of at most so many bytes."""
    with open_regular(path) as (file, size):
        if size > most:
            raise StoreError(f"it has {size:,} bytes, more than the {most:,} allowed")
        # A file that grows meanwhile is not followed.
        return file.read(most)


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parse_json(content: bytes, *, finite: bool = True) -> Any:
    """Parse JSON of limited size and depth, without NaN, infinity or a name twice."""
    if len(content) > MOST_JSON:
        raise StoreError(f"its JSON has {len(content):,} bytes, more than {MOST_JSON:,}")
    bare = _STRINGS.sub(b"", content)
    depth = 0
    for bracket in bare.translate(None, _NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > _MOST_DEPTH:
            raise StoreError(f"its JSON is nested more than {_MOST_DEPTH} deep")
    if _LONG_DIGITS.search(bare):
        raise StoreError(f"a number has more than {_LONGEST_NUMBER} digits")
    return json.loads(
        content.decode("utf-8"),
        object_pairs_hook=_refuse_twice,
        parse_constant=_refuse_constant if finite else float,
        parse_float=_parse_finite,
    )


def _refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise StoreError(f"it says {twice[:80]!r} twice")
    return found


def _refuse_constant(constant: str) -> Any:
    raise StoreError(f"it holds the number {constant}")


def _parse_finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise StoreError(f"it holds the number {text[:40]}, which is beyond all floats")
    return value


def refuse_outside(path: Path, folder: Path) -> None:
    """Refuse a file that a link takes out of its folder, unless into the Hub's own cache."""
    target = path.resolve()
    if target.is_relative_to(folder.resolve()):
        return
    if target.parent != _find_blobs(folder):
        raise StoreError("it is a link that leaves its folder")


def _find_blobs(folder: Path) -> Path | None:
    """Find where the cache of the Hub keeps the files of the repository a folder is in."""
    for parent in folder.absolute().parents:
        blobs = parent.parent / "blobs"
        if parent.name == "snapshots" and blobs.is_dir():
            return blobs.resolve()
    return None


def parse_object(content: bytes, *, finite: bool = True) -> dict[str, Any]:
    """Parse JSON that must be an object."""
    found = parse_json(content, finite=finite)
    if not isinstance(found, dict):
        raise StoreError(f"it must be a JSON object, got {type(found).__name__}")
    return found


def read_safetensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read all tensors and the metadata of a safetensors file, into memory of their own."""
    with open_regular(path) as (file, size):
        places, metadata, rest = _read_header(file, size)
        free = available_bytes()
        # A file may say that it is far larger than what it takes on the disk.
        if free is not None and rest > max(free, MOST_JSON):
            raise StoreError(
                f"its tensors take {format_bytes(rest)}, and {format_bytes(free)} are free"
            )
        tensors, end = {}, 0
        for name in sorted(places, key=lambda each: places[each][2]):
            kind, shape, (start, stop) = places[name]
            length = prod(shape) * kind.itemsize
            # One after the other, without holes: then the file has no byte that nobody reads.
            if start != end or stop - start != length or stop > rest:
                raise StoreError(
                    f"it was cut off or edited, tensor {name[:80]!r} is not where its header "
                    "says"
                )
            tensors[name], end = _read_tensor(file, kind, shape), stop
        if end != rest:
            raise StoreError(f"it has {rest} bytes of tensors, its header says {end}")
    return {name: tensors[name] for name in places}, metadata


_Place = tuple[torch.dtype, tuple[int, ...], tuple[int, int]]


def read_metadata(path: str | Path) -> dict[str, str]:
    """Read the metadata of a safetensors file alone."""
    with open_regular(path) as (file, size):
        return _read_header(file, size)[1]


def _read_header(
    file: BufferedReader, size: int
) -> tuple[dict[str, _Place], dict[str, str], int]:
    """Read where the tensors are, the metadata, and how many bytes of tensors follow."""
    length = int.from_bytes(file.read(8), "little") if size >= 8 else size
    if size < 8 or length > min(size - 8, MOST_JSON):
        raise StoreError("it is not a safetensors file, or was cut off")
    header = parse_object(file.read(length))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise StoreError("the metadata in its header are not text")
    places = {name: _read_place(name, entry) for name, entry in header.items()}
    return places, metadata, size - 8 - length


def _read_place(name: str, entry: Any) -> _Place:
    names = {"dtype", "shape", "data_offsets"}
    if not isinstance(entry, dict) or entry.keys() != names:
        raise StoreError(f"its header does not describe tensor {name[:80]!r}")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in _KINDS:
        raise StoreError(f"tensor {name[:80]!r} has the unknown type {str(kind)[:40]!r}")
    # Numbers that a signed 64-bit integer holds; torch takes no others.
    for numbers in (shape, offsets):
        if not isinstance(numbers, list) or not all(map(is_count, numbers)):
            raise StoreError(f"tensor {name[:80]!r} has sizes that are no numbers")
    if len(offsets) != 2 or len(shape) > _MOST_DEPTH or not is_count(prod(shape)):
        raise StoreError(f"tensor {name[:80]!r} has an impossible size")
    return _KINDS[kind], tuple(shape), (offsets[0], offsets[1])


def is_count(value: object) -> bool:
    """Tell whether a JSON value is a whole number from 0 to 2⁶³ − 1."""
    return type(value) is int and 0 <= value < 2**63


def _read_tensor(file: BufferedReader, kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    tensor = torch.empty(shape, dtype=kind)
    if tensor.numel():
        view = tensor.view(-1).view(torch.uint8).numpy().data
        if file.readinto(view) != len(view):
            raise StoreError("it was cut off while it was read")
        if kind is torch.bool and int(tensor.view(torch.uint8).max()) > 1:
            raise StoreError("it has truth values that are neither true nor false")
    return tensor


def make_from_json(kind: type[Made], values: object) -> Made:
    """Make a small dataclass of its JSON fields, each of which must have its type."""
    if not isinstance(values, Mapping):
        raise StoreError(f"{kind.__name__} must be a JSON object")
    known = {entry.name: entry for entry in fields(kind) if entry.init}  # type: ignore[arg-type]
    needed = {
        name
        for name, entry in known.items()
        if entry.default is MISSING and entry.default_factory is MISSING
    }
    for name in sorted((needed - values.keys()) | (values.keys() - known.keys())):
        fault = "lacks" if name in needed else "has the unknown"
        raise StoreError(f"{kind.__name__} {fault} {name[:80]!r}")
    hints = get_type_hints(kind)
    return kind(**{n: convert_json(v, hints[n], n) for n, v in values.items()})


def convert_json(value: Any, wanted: Any, name: str) -> Any:
    """Check a JSON value against a type annotation; lists become the tuples it names."""
    for allowed in get_args(wanted) if _is_union(wanted) else (wanted,):
        kind, inside = get_origin(allowed) or allowed, get_args(allowed)
        if kind is Any or isinstance(kind, str | ForwardRef):
            return value  # A type that names itself: any JSON
        if kind is Literal and value in inside and type(value) in map(type, inside):
            return value
        if kind is tuple and isinstance(value, list):
            return _convert_tuple(value, inside, name)
        if isinstance(kind, type) and issubclass(dict, kind) and isinstance(value, dict):
            entry = inside[1] if inside else Any
            return {
                n: convert_json(v, entry, f"{name}[{n[:40]}]") for n, v in value.items()
            }
        if isinstance(kind, type) and issubclass(list, kind) and isinstance(value, list):
            return value
        # A bool is an int, and an int does for a float; not the other way round.
        exact = type(value) is int and abs(value) <= 2**53
        if type(value) is kind or (kind is float and exact):
            return value
        if kind in (None, NoneType) and value is None:
            return None
    raise StoreError(f"{name[:120]} must not be {str(value)[:60]!r}")


def _is_union(wanted: Any) -> bool:
    return get_origin(wanted) in (UnionType, Union)


def _convert_tuple(value: list[Any], inside: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    if len(inside) == 2 and inside[1] is Ellipsis:
        inside = (inside[0],) * len(value)
    if len(inside) != len(value):
        raise StoreError(f"{name} must have {len(inside)} values, got {len(value)}")
    return tuple(
        convert_json(each, kind, f"{name}[{i}]")
        for i, (each, kind) in enumerate(zip(value, inside, strict=True))
    )
