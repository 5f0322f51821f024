"""Writing whole or not at all: to a temporary place beside the target, then renamed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file whole, as UTF-8; half a surrogate pair becomes a question mark."""
    return write_bytes(path, text.encode("utf-8", errors="replace"))


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give a temporary folder to fill; it takes the place of `folder` if all went well.

    Args:
        folder: The target. What is there is moved aside first, back if that fails, and
            removed at the end; whether it may be replaced is for the caller to ask.

    Yields:
        The folder to fill.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    new, old = work / "new", work / "old"
    try:
        new.mkdir()
        yield new
        if folder.exists():
            os.rename(folder, old)
        try:
            os.rename(new, folder)
        except BaseException:
            if old.exists():
                os.rename(old, folder)
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
