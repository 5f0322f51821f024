"""Files and folders: written whole or not at all, hashed, and read with clear refusals.

Everything is written to a temporary path beside the target, then renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from smidgen.errors import StoreError

HASH = "tensors_sha256"
"""Key of the tensors' hash in a saved folder's config."""


def write_bytes(path: str | Path, content: bytes) -> Path:
    """Write or replace a whole file, making its folder if need be."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def _umask() -> int:
    """Read the permissions that new files lack; it can only be read by setting it."""
    umask = os.umask(0)
    os.umask(umask)
    return umask


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file whole, as UTF-8; half a surrogate pair becomes a question mark."""
    return write_bytes(path, text.encode("utf-8", errors="replace"))


def write_tensor_file(
    path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any], *, key: str
) -> Path:
    """Write tensors and a JSON header, stored under `key`, to one safetensors file."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return write_bytes(path, save(plain, metadata={key: json.dumps(dict(header))}))


def read_tensor_file(
    path: str | Path, *, key: str, what: str, advice: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensor_file` wrote; errors say what was expected and what to do."""
    try:
        with safe_open(str(path), framework="pt") as file:
            header = json.loads((file.metadata() or {})[key])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise StoreError(f"{path} is not a {what} file ({error}). {advice}") from error
    return tensors, dict(header)


def require_schema(path: str | Path, stored: object, known: int, what: str) -> None:
    """Refuse what another version of smidgen wrote."""
    if stored != known:
        raise StoreError(
            f"{path} has {what} schema {stored}, this smidgen reads {known}. Use the "
            "version that wrote it."
        )


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill, which replaces `folder` if nothing fails.

    An existing folder is moved aside first, and moved back if anything fails before the new
    one is in place. Call `refuse_taken` first.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    new, old = work / "new", work / "old"
    try:
        new.mkdir()
        yield new
        for path in new.rglob("*"):
            # Some writers make files that only their owner may read.
            os.chmod(path, (0o777 if path.is_dir() else 0o666) & ~_umask())
        if folder.exists():
            os.rename(folder, old)
        os.rename(new, folder)
    finally:
        if old.exists() and not folder.exists():
            os.rename(old, folder)
        shutil.rmtree(work, ignore_errors=True)


def refuse_taken(
    folder: Path, *, overwrite: bool, needed: str, written: Sequence[str], what: str
) -> None:
    """Refuse a target that holds anything but an earlier save to be replaced."""
    # `needed` matches a file that every save has, `written` all files a save may have.
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir() or folder.is_symlink():
        raise StoreError(f"{folder} must be a folder, or not exist. Give another.")
    names = sorted(path.name for path in folder.iterdir())
    if not names:
        return
    if not overwrite:
        raise StoreError(
            f"{folder} exists already and is not empty. Give another folder, or pass "
            f"overwrite=True (--overwrite) to replace the {what} there."
        )
    foreign = [n for n in names if not any(fnmatchcase(n, pattern) for pattern in written)]
    if foreign or not any(fnmatchcase(name, needed) for name in names):
        problem = f"holds {foreign[0]!r}" if foreign else f"has no {needed}"
        raise StoreError(
            f"{folder} {problem}, so it is not just a {what} to be replaced. Give another "
            "folder."
        )


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_config(path: Path, *, schema: int, what: str, made_by: str) -> dict[str, Any]:
    """Read the JSON config of a saved folder, refusing another schema."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        stored = config["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{path.parent} is not a saved {what} ({error}). Make one with {made_by}."
        ) from error
    require_schema(path.parent, stored, schema, what)
    return dict(config)


def read_tensors(path: Path, config: dict[str, Any], *, what: str) -> dict[str, Tensor]:
    """Read the tensors of a saved folder if they match the hash in its config."""
    try:
        intact = hash_file(path) == config[HASH]
        tensors = load_file(str(path)) if intact else {}
    except (OSError, KeyError, SafetensorError) as error:
        raise StoreError(f"{path} cannot be read ({error}). Save it again.") from error
    if not intact:
        raise StoreError(
            f"{path} was truncated or edited: its hash is not the one beside it. Save the "
            f"{what} again."
        )
    return tensors
