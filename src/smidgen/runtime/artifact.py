"""What every file and folder that smidgen reads back has in common: a digest over all it says.

The SHA-256 covers the header (as JSON with sorted names) and the name, type, shape and
bytes of every tensor; it is checked before anything else is believed. One file keeps
header and digest in safetensors metadata or is JSON itself; a folder keeps them in its
`config.json` beside the tensors. A folder's README is for people: it is never read and
not covered.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save, save_file
from torch import Tensor

from smidgen.errors import SmidgenError, StoreError, reason, system_reason
from smidgen.runtime.files import write_bytes, write_text
from smidgen.runtime.reading import (
    parse_object,
    read_metadata,
    read_safetensors,
    read_whole,
    refuse_outside,
)

DIGEST = "digest"
"""The field of a header that holds its digest."""
_TABLE = "tensors"
MALFORMED = (
    SmidgenError,
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Whatever a file's content can make a constructor raise."""


@contextmanager
def reading(path: str | Path, what: str, advice: str) -> Iterator[None]:
    """Turn whatever is wrong with a file into one sentence: which, what is wrong, a remedy."""
    try:
        yield
    except MALFORMED as error:
        said = reason(error)
        if isinstance(error, FileNotFoundError):
            missing = Path(error.filename)
            said = f"there is no {missing.name!r}"
            if not os.path.isdir(missing.parent):
                said = f"there is no folder {str(missing.parent)!r}"
        elif isinstance(error, OSError):
            said = system_reason(error)
        elif isinstance(error, UnicodeEncodeError):
            said = "no file can have that name"
        elif not isinstance(error, SmidgenError):
            said = f"it does not hold what it should ({type(error).__name__}: {said})"
        raise StoreError(
            f"{path} is not a {what} that can be read: {said}. {advice}"
        ) from error


def find_digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Hash (SHA-256) a header without its digest, and all tensors."""
    plain = {name: value for name, value in header.items() if name != DIGEST}
    found = hashlib.sha256(_canonical(plain))
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        about = [name, str(tensor.dtype), list(tensor.shape)]
        found.update(b"\n" + _canonical(about) + b"\n")
        if tensor.numel():
            found.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _canonical(value: Any) -> bytes:
    # Through JSON and back: a tuple is a list there, and every name is text.
    plain = json.loads(dump_json(value))
    return dump_json(plain, sort_keys=True, separators=(",", ":")).encode("ascii")


def dump_json(value: Any, **how: Any) -> str:
    """Write JSON, refusing NaN, infinity and whatever else it cannot hold."""
    try:
        return json.dumps(value, allow_nan=False, **how)
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"the content holds a value JSON cannot: {reason(error)}. Give finite numbers, "
            "text and lists of them."
        ) from error


def seal(
    header: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None
) -> dict[str, Any]:
    """Copy a header with its digest in it."""
    return {**header, DIGEST: find_digest(header, tensors or {})}


def check_seal(
    header: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None
) -> dict[str, Any]:
    """Copy a header without its digest, if that is right."""
    require_digest(header)
    if header[DIGEST] != find_digest(header, tensors or {}):
        raise StoreError("it was damaged or edited, its digest is another")
    return {name: value for name, value in header.items() if name != DIGEST}


def require_digest(header: Mapping[str, Any]) -> None:
    """Refuse a header that was never sealed."""
    if header.get(DIGEST) is None:
        raise StoreError("it has no digest, so an earlier version of smidgen wrote it")


def write_sealed_json(path: str | Path, header: Mapping[str, Any]) -> Path:
    """Write a JSON object with its digest, whole or not at all."""
    return write_text(path, dump_json(seal(header), indent=1) + "\n")


def read_sealed_json(path: str | Path, *, what: str, advice: str) -> dict[str, Any]:
    """Read what `write_sealed_json` wrote."""
    with reading(path, what, advice):
        return check_seal(parse_object(read_whole(path)))


def write_tensor_file(
    path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any], *, key: str
) -> Path:
    """Write tensors and a JSON header, stored under `key`, to one safetensors file."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return write_bytes(path, save(plain, metadata={key: dump_json(seal(header, plain))}))


def read_tensor_file(
    path: str | Path, *, key: str, what: str, advice: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensor_file` wrote; errors say what was expected and what to do."""
    with reading(path, what, advice):
        # Before any tensor is read: another file may be of any size.
        metadata = read_metadata(path)
        if key not in metadata:
            raise StoreError(f"its metadata have no {key!r}")
        header = parse_object(metadata[key].encode("utf-8"))
        require_digest(header)
        tensors, _ = read_safetensors(path)
        header = check_seal(header, tensors)
    return tensors, header


def find_keys(path: str | Path) -> frozenset[str]:
    """Tell under which keys a safetensors file has headers; none if it is no such file."""
    try:
        return frozenset(read_metadata(path))
    except MALFORMED:
        return frozenset()


def fill_folder(
    config_path: Path,
    tensor_path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
) -> None:
    """Write the config and the tensors of a folder that `files.new_folder` keeps whole."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(plain, str(tensor_path), metadata={"format": "smidgen"})
    text = dump_json(seal_folder(config, plain), indent=1)
    config_path.write_text(text + "\n", encoding="utf-8")


def seal_folder(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Copy a folder's config with the table of its tensors, and the digest over both."""
    table = {name: _describe(tensor) for name, tensor in tensors.items()}
    return seal({**config, _TABLE: table}, tensors)


def read_folder(
    config_path: Path, tensor_path: Path, *, what: str, advice: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `fill_folder` wrote: exactly the tensors that the config lists."""
    folder = config_path.parent
    with reading(folder, what, advice):
        for path in (config_path, tensor_path):
            refuse_outside(path, folder)
        config = parse_object(read_whole(config_path))
        require_digest(config)
        tensors, _ = read_safetensors(tensor_path)
        config = check_seal(config, tensors)
        listed = {name: _describe(tensor) for name, tensor in tensors.items()}
        if config.pop(_TABLE, None) != listed:
            raise StoreError("its tensors are not those that its config lists")
    return tensors, config


def _describe(tensor: Tensor) -> list[Any]:
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]


def require_schema(path: str | Path, stored: object, known: int, what: str) -> None:
    """Refuse what another version of smidgen wrote."""
    if type(stored) is not int or stored != known:
        raise StoreError(
            f"{path} has {what} schema {str(stored)[:40]}, this smidgen reads {known}. Use "
            "the version that wrote it."
        )


def require_finite(name: str, tensor: Tensor) -> None:
    """Refuse NaN and infinity in a tensor."""
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise StoreError(f"{name} holds NaN or infinity")


def require_like(name: str, tensor: Tensor, like: Tensor) -> Tensor:
    """Refuse a tensor of another shape or type: nothing is broadcast, nothing rounded."""
    if tensor.shape != like.shape or tensor.dtype != like.dtype:
        raise StoreError(
            f"{name} must be {like.dtype} of shape {tuple(like.shape)}, got {tensor.dtype} "
            f"of {tuple(tensor.shape)}"
        )
    return tensor


class Taken(Mapping[str, Tensor]):
    """Tensors that remember which were asked for, so that none is left over unread."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors, self._left = tensors, set(tensors)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise StoreError(f"the tensor {name!r} is missing")
        self._left.discard(name)
        return self._tensors[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The tensor of a name if it is there."""
        return default if name not in self._tensors else self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def refuse_rest(self) -> None:
        """Refuse tensors that nobody asked for."""
        if self._left:
            raise StoreError(f"the tensor {min(self._left)!r} belongs to nothing in it")
