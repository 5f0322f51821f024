"""As much of Windows as a test can have on Linux: what it lacks is gone, what it refuses fails."""

from __future__ import annotations

import errno
import os
import stat
import sys

from smidgen.runtime.system.process import identify_host

# What Linux has and Windows has not, as far as the sources could use it.
MISSING = ("uname", "fork", "pathconf", "sched_getaffinity", "mkfifo", "getuid", "statvfs")


def pretend_windows(monkeypatch) -> None:
    """Make this process refuse what Windows does not do."""
    monkeypatch.setattr(sys, "platform", "win32")
    for name in (*MISSING, "O_NONBLOCK", "O_CLOEXEC"):
        monkeypatch.delattr(os, name, raising=False)
    real_open, real_rename, real_kill = os.open, os.rename, os.kill
    writable: set[int] = set()

    def kill(process, number):
        # psutil asks so on Linux, and asks otherwise on Windows.
        assert not _called_by_us(), f"this would end process {process}"
        return real_kill(process, number)

    def open_file(path, flags, *mode, **how):
        # shutil opens folders on Linux only.
        if _called_by_us() and os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        handle = real_open(path, flags, *mode, **how)
        writable.discard(handle)
        if flags & (os.O_WRONLY | os.O_RDWR):
            writable.add(handle)
        return handle

    def fsync(handle):
        if handle not in writable and not stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")

    def rename(source, target, **how):
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, "Cannot create a file that exists", target)
        real_rename(source, target, **how)

    for name, call in (
        ("kill", kill),
        ("open", open_file),
        ("fsync", fsync),
        ("rename", rename),
    ):
        monkeypatch.setattr(os, name, call)
    monkeypatch.setattr("smidgen.runtime.files.exchange_folders", lambda *_: False)
    identify_host.cache_clear()
    monkeypatch.setattr("os.stat", hide_proc(os.stat))


def _called_by_us() -> bool:
    return sys._getframe(2).f_globals["__name__"].startswith("smidgen")


def hide_proc(call):
    """Let a call of the file system find nothing under /proc."""

    def called(path, *args, **how):
        if not isinstance(path, int) and os.fspath(path).startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return call(path, *args, **how)

    return called
