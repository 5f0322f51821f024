"""Writing whole or not at all: to a temporary place beside the target, then renamed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from smidgen.errors import StoreError


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
    """What the user keeps from others; it can only be read by setting it."""
    found = os.umask(0)
    os.umask(found)
    return found


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file whole, as UTF-8; half a surrogate pair becomes a question mark."""
    return write_bytes(path, text.encode("utf-8", errors="replace"))


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give a temporary folder to fill; it takes the place of `folder` if all went well.

    Args:
        folder: The target. What is there is moved aside first, and moved back whatever
            happens before the new one is in place; ask `refuse_taken` beforehand.

    Yields:
        The folder to fill.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    new, old = work / "new", work / "old"
    try:
        new.mkdir()
        yield new
        for each in new.rglob("*"):
            # Some writers make files that only their owner may read.
            os.chmod(each, (0o777 if each.is_dir() else 0o666) & ~_umask())
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
        needed: A file that every such save has, as a pattern.
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
    foreign = [n for n in names if not any(fnmatchcase(n, each) for each in written)]
    if foreign or not any(fnmatchcase(name, needed) for name in names):
        found = f"holds {foreign[0]!r}" if foreign else f"has no {needed}"
        raise StoreError(
            f"{folder} {found}, so it is not just a {what} to be replaced. Give another "
            "folder."
        )
