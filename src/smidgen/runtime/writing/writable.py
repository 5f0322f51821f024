"""Can it be written? Asked before the work, not after hours of it."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from smidgen.errors import StoreError, reason
from smidgen.runtime.memory import format_bytes
from smidgen.runtime.system.process import on_windows

_LEAST_SPACE = 1 << 20
"""What any output may need: records, pages and folders of their own."""
_LONGEST_NAME = 255
# What Windows takes for a device, whatever follows after a dot, and what no name there holds.
_DEVICES = {"con", "prn", "aux", "nul"} | {
    f"{n}{i}" for n in ("com", "lpt") for i in range(10)
}
_FORBIDDEN = re.compile(r'[<>:"|?*\x00-\x1f]|[. ]$')


def require_writable(
    path: str | Path, name: str, *, folder: bool = False, size: int = 0
) -> None:
    """Refuse a path that could not be written, by really writing beside it.

    Args:
        path: The file, or the folder, that is to be written. Whether it may be replaced is
            another question.
        name: The option or the argument that gave it.
        folder: Whether it is to be a folder.
        size: How many bytes it will take, as far as they are known.

    Raises:
        StoreError: If the path is too long, a folder where a file is wanted or the reverse,
            in a folder that cannot be made or written to, or on a disk without the space.
    """
    path = Path(path)
    wanted = "a folder" if folder else "a file"
    if "\0" in str(path):
        raise StoreError(
            f"{name} must be the path of {wanted}, got {str(path)!r}, which holds a null "
            "character. Choose another name."
        )
    try:
        os.fsencode(path)
        absolute = Path(os.path.abspath(path))
        if on_windows():
            _require_allowed(path, name)
        ancestor = _find_existing(absolute.parent)
        _require_short(absolute, ancestor, name)
        _require_kind(absolute, name, folder=folder)
        _require_parent(absolute, ancestor, name)
        # What is inside an existing folder is replaced file by file.
        _try_writing(absolute if folder and absolute.is_dir() else ancestor)
    except OSError as error:
        why = error.strerror or reason(error)
        raise StoreError(
            f"{name} must be {wanted} that can be written, got {str(path)!r} ({why}). Give "
            "a path where you may write."
        ) from error
    except UnicodeEncodeError as error:
        raise StoreError(
            f"{name} must be the path of {wanted}, got {str(path)!r}, which the system "
            "cannot write. Choose another name."
        ) from error
    require_space(path, name, size)


def require_space(path: str | Path, name: str, size: int) -> None:
    """Refuse to begin what the disk of a path has no space for; `size` is in bytes."""
    absolute = Path(os.path.abspath(path))
    place = absolute if absolute.is_dir() else _find_existing(absolute.parent)
    free = shutil.disk_usage(place).free
    needed = size + _LEAST_SPACE
    if free < needed:
        raise StoreError(
            f"{name} must be on a disk with {format_bytes(needed)} free, got {str(path)!r} "
            f"with {format_bytes(free)}. Free some space, or give a path on another disk."
        )


def _find_existing(path: Path) -> Path:
    """Find the nearest of a path and the folders above it that exists."""
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path


def _require_short(path: Path, ancestor: Path, name: str) -> None:
    longest = _LONGEST_NAME
    with suppress(AttributeError, OSError, ValueError):  # Windows has no pathconf.
        longest = os.pathconf(ancestor, "PC_NAME_MAX")
    for part in path.parts:
        if len(os.fsencode(part)) > longest:
            raise StoreError(
                f"{name} must have names of {longest} bytes or fewer, got "
                f"{len(os.fsencode(part))} in {part[:40] + '…'!r}. Give a shorter name."
            )


def _require_allowed(path: Path, name: str) -> None:
    """Refuse a name that Windows keeps for a device, or cuts off, or has no use for."""
    for part in path.parts[bool(path.anchor) :]:
        device = part.partition(".")[0].rstrip().lower() in _DEVICES
        if part not in (".", "..") and (device or _FORBIDDEN.search(part)):
            raise StoreError(
                f"{name} must have names that Windows allows, got {part!r}. Use letters, "
                "digits, - and _."
            )


def _require_kind(path: Path, name: str, *, folder: bool) -> None:
    """Refuse something of another kind in the path's place."""
    if not path.exists():
        return
    mode = path.stat().st_mode
    if folder and not stat.S_ISDIR(mode):
        raise StoreError(f"{name} must be a folder, got the file {path}. Give another.")
    if not folder and stat.S_ISDIR(mode):
        raise StoreError(
            f"{name} must be a file, got the folder {path}. Name a file in it."
        )
    if not folder and not stat.S_ISREG(mode):
        raise StoreError(
            f"{name} must be a plain file, got the device or pipe {path}. Give another."
        )


def _require_parent(path: Path, ancestor: Path, name: str) -> None:
    if not ancestor.is_dir():
        raise StoreError(
            f"{name} must be in a folder, got {path}, and {ancestor} is no folder. Give "
            "another path."
        )


def _try_writing(folder: Path) -> None:
    """Write a file that has no name, so that nothing stays even if this is killed."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"smidgen")
        file.flush()
