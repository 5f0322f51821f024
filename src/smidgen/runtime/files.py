"""Files and folders: written whole or not at all, through a kill and through power loss.

Everything is written beside its target, synced to the disk and then renamed; an existing
folder is exchanged with the new one in a single step where the system can do that. What a
killed save leaves behind is swept, or put back, by the next one of the same target.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path

from safetensors import SafetensorError

from smidgen.errors import StoreError, reason, system_reason
from smidgen.runtime.system.process import identify_host, is_running
from smidgen.runtime.system.replacing import (
    OPEN_FLAGS,
    exchange_folders,
    rename_folder,
    replace_file,
    sync,
)

# What a save leaves if it is killed: .smidgen-TARGET-HOST-PID-RANDOM, of a fixed length, so
# that any name the file system takes can be written.
_PREFIX = ".smidgen"
_LIVE: set[str] = set()
"""Names that saves of this process are using now."""
_OLD_SECONDS = 86_400.0
_TRIES = 100
"""How often a folder that others replace at the same time is replaced once more."""
_ADVICE = {
    errno.ENOSPC: "Free some space, or name another place",
    errno.EDQUOT: "Free some space, or name another place",
    errno.EFBIG: "Raise the limit on file sizes (ulimit -f), or name another place",
    errno.ENAMETOOLONG: "Choose a shorter name",
    errno.EACCES: "Name a place where you may write",
    errno.EPERM: "Name a place where you may write",
    errno.EROFS: "Name a place where you may write",
    errno.ENOTEMPTY: "Something was written there meanwhile: name another folder",
}
_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


def write_bytes(path: str | Path, content: bytes) -> Path:
    """Write or replace a whole file, making its folder if need be."""
    path = Path(path)
    with explain_write_errors(path):
        # A link is written through, as by any editor; a device would be replaced by a file.
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
        if target.exists() and not target.is_file():
            raise StoreError(f"{path} must be a file, or not exist. Name another.")
        _make_folder(target.parent)
        sweep(target)
        with _leftover(target) as temporary:
            # The kernel takes off what the umask says.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | OPEN_FLAGS
            with open(os.open(temporary, flags, 0o666), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            replace_file(temporary, target)
        sync(target.parent)
    return path


def write_text(path: str | Path, text: str) -> Path:
    """Write a text file whole, as UTF-8; half a surrogate pair becomes a question mark."""
    return write_bytes(path, text.encode("utf-8", errors="replace"))


@contextmanager
def new_folder(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary folder to fill, which becomes `folder` if nothing fails.

    It replaces one that holds anything only if `overwrite` is set. Call `refuse_taken` first.
    """
    with explain_write_errors(folder):
        _make_folder(folder.parent)
        sweep(folder)
        with _leftover(folder) as work:
            new, old = work / "new", work / "old"
            try:
                work.mkdir()
                new.mkdir()
                yield new
                _open_to_others(work, new)
                sync_tree(new)
                _put_in_place(new, folder, old, overwrite=overwrite)
                sync(folder.parent)
                # Else it would be put back while another save has ours moved aside.
                _remove(old)
            finally:
                # What cannot be put back is kept, for the next save or load.
                if os.path.exists(old) and not os.path.exists(folder):
                    with suppress(OSError):
                        rename_folder(old, folder)


def _put_in_place(new: Path, folder: Path, old: Path, *, overwrite: bool) -> None:
    """Give a filled folder its name. Other processes may do the same at any moment."""
    for more in reversed(range(_TRIES)):
        try:
            if overwrite and os.path.exists(folder):
                if exchange_folders(new, folder):
                    return
                _remove(old)  # Of an earlier try: another save has replaced it since.
                rename_folder(folder, old)
            # Refused over a folder that is not empty.
            rename_folder(new, folder)
            return
        except OSError as error:
            taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
            if taken and not overwrite:
                raise _exists_already(folder, "what is") from error
            if not more or not (taken or error.errno == errno.ENOENT):
                raise


def _exists_already(folder: Path, what: str) -> StoreError:
    return StoreError(
        f"{folder} exists already and is not empty. Give another folder, or pass "
        f"overwrite=True (--overwrite) to replace {what} there."
    )


def sync_tree(folder: Path) -> None:
    """Have everything under a folder on the disk before anything relies on it."""
    for path in [*folder.rglob("*"), folder]:
        sync(path)


def recover(folder: Path) -> None:
    """Put back a folder that a killed save had moved aside, if it is missing."""
    if not os.path.exists(folder):
        sweep(folder)


def sweep(target: Path) -> None:
    """Remove what killed saves of a target left; put back what they had moved aside."""
    # Nothing was left where no such name can be.
    with suppress(OSError, UnicodeEncodeError):
        start = _name_start(target)
        names = [n for n in os.listdir(target.parent) if n.startswith(start)]
        for name in sorted(names):
            left = target.parent / name
            if not _is_abandoned(left):
                continue
            if os.path.isdir(left / "old") and not os.path.exists(target):
                rename_folder(left / "old", target)
                sync(target.parent)
            _remove(left)


def refuse_taken(
    folder: Path, *, overwrite: bool, needed: str, written: Sequence[str], what: str
) -> None:
    """Refuse a target that holds anything but an earlier save to be replaced."""
    # `needed` matches a file that every save has, `written` all files a save may have.
    with explain_write_errors(folder):
        recover(folder)
        if not folder.exists() and not folder.is_symlink():
            return
        if not folder.is_dir() or folder.is_symlink():
            raise StoreError(f"{folder} must be a folder, or not exist. Give another.")
        names = sorted(path.name for path in folder.iterdir())
        if not names:
            return
        if not overwrite:
            raise _exists_already(folder, f"the {what}")
        foreign = [
            n for n in names if not any(fnmatchcase(n, pattern) for pattern in written)
        ]
        if foreign or not any(fnmatchcase(name, needed) for name in names):
            problem = f"holds {foreign[0]!r}" if foreign else f"has no {needed}"
            raise StoreError(
                f"{folder} {problem}, so it is not just a {what} to be replaced. Give another "
                "folder."
            )


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn the system's errors on writing into one sentence with the path and a remedy."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        cause = error if isinstance(error, OSError) else _find_system_error(error)
        advice = _ADVICE.get(cause.errno or 0, "Check the path, or name another place")
        said = system_reason(cause)
        raise StoreError(f"{path} cannot be written: {said}. {advice}.") from error
    except ValueError as error:
        unwritable = isinstance(error, UnicodeEncodeError) and not _is_name(path)
        if not unwritable and "null byte" not in str(error):
            raise
        part = "half of a surrogate pair" if unwritable else "null character"
        raise StoreError(
            f"{str(path)!r} cannot be written: a name holds no {part}. Choose another name."
        ) from error


def _find_system_error(error: SafetensorError) -> OSError:
    """The error of the system that safetensors met while it wrote a file."""
    number = _SYSTEM_ERROR.search(str(error))
    if number is None:
        return OSError(reason(error))
    return OSError(int(number[1]), os.strerror(int(number[1])))


def _is_name(path: Path) -> bool:
    """Tell whether the system can write a path's characters as bytes."""
    try:
        return bool(os.fsencode(path))
    except UnicodeEncodeError:
        return False


def _name_start(target: Path) -> str:
    return f"{_PREFIX}-{sha256(os.fsencode(target.name)).hexdigest()[:12]}-"


@contextmanager
def _leftover(target: Path) -> Iterator[Path]:
    """Yield a new name beside a target; whatever has it in the end is removed."""
    name = f"{_name_start(target)}{identify_host()}-{os.getpid()}-{secrets.token_hex(4)}"
    _LIVE.add(name)
    try:
        yield target.parent / name
    finally:
        left = target.parent / name
        # What was moved aside and could not be put back is kept, for the next save or load.
        if os.path.exists(target) or not os.path.exists(left / "old"):
            _remove(left)
        _LIVE.discard(name)


def _is_abandoned(left: Path) -> bool:
    """Tell whether the save that used a name is over: its process is gone, or it is old."""
    try:
        *_, host, number, _ = left.name.split("-")
        process, age = int(number), time.time() - left.lstat().st_mtime
    except (OSError, ValueError):
        return False
    if left.name in _LIVE:
        return False
    if host != identify_host() or process < 1:
        return age > _OLD_SECONDS
    if process == os.getpid():
        return True  # An earlier process had the same number.
    return is_running(process) is False or age > _OLD_SECONDS


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    """Make a folder and those above it, each entered in the one above on the disk."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        sync(each.parent)


def _open_to_others(work: Path, new: Path) -> None:
    """Give files the permissions that new ones get: some writers let only their owner read."""
    probe = work / "probe"
    os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | OPEN_FLAGS, 0o666))
    modes = {False: probe.stat().st_mode, True: work.stat().st_mode}
    probe.unlink()
    for path in new.rglob("*"):
        mode = stat.S_IMODE(modes[path.is_dir()])
        if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) != mode:
            os.chmod(path, mode)
