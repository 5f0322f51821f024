"""Processes and cores: which numbers are in use, and how many cores this process may use."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from hashlib import sha256
from importlib import import_module
from types import ModuleType


def on_windows() -> bool:
    """Tell whether this is Windows, where a file in use can be neither replaced nor removed."""
    return sys.platform == "win32"


def find_psutil() -> ModuleType | None:
    """Import psutil if it is there, as on macOS and Windows; Linux tells the same in /proc."""
    try:
        return import_module("psutil")
    except ImportError:
        return None


@cache
def identify_host() -> str:
    """Tell this machine and its set of process numbers from others that share a disk."""
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        space = 0  # Only Linux has several sets of process numbers.
    return sha256(f"{platform.node()}|{space}".encode()).hexdigest()[:8]


def is_running(process: int) -> bool | None:
    """Tell whether a process number of this machine is in use; None if it cannot be told."""
    if on_windows():
        # There os.kill would not ask: it would send Ctrl-C, or end the process.
        psutil = find_psutil()
        return None if psutil is None else bool(psutil.pid_exists(process))
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True  # It belongs to somebody else.
    return True


def count_cores() -> int:
    """Count the cores this process may use: fewer than the machine's if it is bound to some."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
