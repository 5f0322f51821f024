"""Giving a file or a folder its name, where another has it, on every system.

POSIX renames over a file that others read, and over an empty folder. Windows does neither: it
refuses while any program (often a virus scanner) has the file open, mostly for a moment, so
there it is tried again for a second. Linux exchanges two folders in one step.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from smidgen.runtime.system.process import on_windows

# What files are opened with: the flags that only some systems have or need.
OPEN_FLAGS: int = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_RENAME_EXCHANGE, _HERE = 2, -100  # of linux/fs.h and fcntl.h
_TRIES, _PAUSE = 20, 0.05


def replace_file(source: Path, target: Path) -> None:
    """Give a file its name, in place of the file that has it."""
    _insist(lambda: os.replace(source, target))


def rename_folder(source: Path, target: Path) -> None:
    """Give a folder its name; an empty folder that has it is replaced, no other."""

    def rename() -> None:
        try:
            os.rename(source, target)
        except FileExistsError:
            os.rmdir(target)  # Refused if there is anything in it.
            os.rename(source, target)

    _insist(rename)


def exchange_folders(one: Path, two: Path) -> bool:
    """Swap two folders in one step; False where the system cannot."""
    call = find_exchange()
    if call is None:
        return False
    paths = os.fsencode(one), os.fsencode(two)
    return call(_HERE, paths[0], _HERE, paths[1], _RENAME_EXCHANGE) == 0


@cache
def find_exchange() -> ctypes._NamedFuncPointer | None:
    """Find Linux's renameat2."""
    with suppress(OSError, AttributeError, TypeError):
        call = ctypes.CDLL(None, use_errno=True).renameat2
        number, name = ctypes.c_int, ctypes.c_char_p
        call.argtypes = [number, name, number, name, ctypes.c_uint]
        return call
    return None


def sync(path: Path) -> None:
    """Have the system write a file, or the list of a folder's files, to the disk."""
    if path.is_symlink():
        return
    # Windows syncs no folders, and files only through a handle that may write.
    mode = os.O_RDWR if on_windows() else os.O_RDONLY
    try:
        handle = os.open(path, mode | OPEN_FLAGS)
    except PermissionError:
        return  # A folder that may be written and not listed.
    try:
        os.fsync(handle)
    except OSError as error:
        # Some file systems cannot sync folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(handle)


def _insist(work: Callable[[], None]) -> None:
    """Try again for a while where another program's look at a file is in the way."""
    for left in reversed(range(_TRIES if on_windows() else 1)):
        try:
            work()
            return
        except PermissionError:
            if not left:
                raise
            time.sleep(_PAUSE)
