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
"""The key of a saved folder's config under which the hash of its tensors is."""


def write_bytes(path: str | Path, content: bytes) -> Path:
    """Write a file whole, making its folder if need be.

    Args:
        path: The file; one that is there is replaced.
        content: Its content.

    Returns:
        The path.
    """
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
    """Read which permissions new files lack, which takes setting it."""
    umask = os.umask(0)
    os.umask(umask)
    return umask


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file whole, as UTF-8; half a surrogate pair becomes a question mark."""
    return write_bytes(path, text.encode("utf-8", errors="replace"))


def write_tensor_file(
    path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any], *, key: str
) -> Path:
    """Write tensors and a JSON header to one safetensors file.

    Args:
        path: The file; one that is there is replaced.
        tensors: The tensors.
        header: What else the file tells, as JSON values.
        key: The metadata key of the header, which tells the kinds of files apart.

    Returns:
        The path.
    """
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return write_bytes(path, save(plain, metadata={key: json.dumps(dict(header))}))


def read_tensor_file(
    path: str | Path, *, key: str, what: str, advice: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensor_file` wrote.

    Args:
        path: The file.
        key: The metadata key of the header.
        what: What the file should be: "subset".
        advice: What to do if it is not.

    Returns:
        The tensors and the header.

    Raises:
        StoreError: If the file is missing, damaged or of another kind.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            header = json.loads((file.metadata() or {})[key])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise StoreError(f"{path} is not a {what} file ({error}). {advice}") from error
    return tensors, dict(header)


def require_schema(path: str | Path, stored: object, known: int, what: str) -> None:
    """Refuse what another version of smidgen wrote.

    Args:
        path: What was read, for the refusal.
        stored: The schema it has.
        known: The schema this version reads.
        what: What it is: "posterior".

    Raises:
        StoreError: If the schemas differ.
    """
    if stored != known:
        raise StoreError(
            f"{path} has {what} schema {stored}, this smidgen reads {known}. Use the "
            "version that wrote it."
        )


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give a temporary folder to fill; it replaces `folder` if nothing fails.

    Args:
        folder: The target. An existing one is moved aside first, and moved back if
            anything fails before the new one is in place; call `refuse_taken` before.

    Yields:
        The folder to fill.
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
    """Refuse a target that holds anything but an earlier save to be replaced.

    Args:
        folder: The target.
        overwrite: Whether an earlier save may be replaced.
        needed: Pattern of a file that every save has.
        written: Patterns of all files that a save may have.
        what: What is saved there: "posterior".

    Raises:
        StoreError: If the target is a file, or holds something that must stay.
    """
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
    """Read the JSON config of a saved folder.

    Args:
        path: The file.
        schema: The schema.
        what: What the folder should be: "posterior".
        made_by: What makes one, for the refusal.

    Returns:
        The config.

    Raises:
        StoreError: If the file is missing, damaged or of another schema.
    """
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
    """Read the tensors of a saved folder, if they have the hash that its config says.

    Args:
        path: The file.
        config: The config beside it.
        what: What the folder is, for the refusal.

    Returns:
        The tensors.

    Raises:
        StoreError: If the file cannot be read, or was changed.
    """
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
