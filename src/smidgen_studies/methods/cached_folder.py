"""A folder for models that take long to fetch or to make, and are never committed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def cached_folder(name: str, make: Callable[[Path], None]) -> Path:
    """Find a folder that `make` has filled, in this run or before; whole or not there.

    Of workers that want it at the same time one makes it, and the others wait.

    Args:
        name: Its name, which should tell everything that shaped it.
        make: Fills an empty folder.

    Returns:
        The folder, under $SMIDGEN_CACHE, else the system's folder for temporary files.
    """
    root = os.environ.get("SMIDGEN_CACHE")
    parent = Path(root) if root else Path(tempfile.gettempdir()) / "smidgen-cache"
    folder = parent / name
    if not folder.is_dir():
        parent.mkdir(parents=True, exist_ok=True)
        with FileLock(parent / f".{name}.lock"):
            if not folder.is_dir():
                _fill(folder, make)
    return folder


def _fill(folder: Path, make: Callable[[Path], None]) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make(work)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
