"""How much memory is free, byte counts in readable form, and where tensors lie in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError
from smidgen.runtime.system.process import find_psutil

LIMIT = "SMIDGEN_MEMORY"
"""The environment variable that sets how many bytes may be used."""

_MEMINFO = Path("/proc/meminfo")
_MEMBERSHIP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
# Files of a control group's limit and usage, and the line of memory.stat whose bytes can be
# reclaimed: version 2 of Linux's control groups, then version 1.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
# Where torch lets a new tensor begin: at multiples of so many bytes.
_ALIGNMENT = 64
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")
_WRITTEN = re.compile(r"([0-9]+\.?[0-9]*(?:e[0-9]+)?) *([a-zA-Z]*)", re.ASCII)


def available_bytes(device: torch.device | str = "cpu") -> int | None:
    """Find how many bytes are free on a device; None if that cannot be found out."""
    # On a CPU this is the system's estimate (Linux's MemAvailable, elsewhere what psutil says,
    # or free pages), at most what a container's limit leaves. SMIDGEN_MEMORY, a number of
    # bytes, overrides it.
    limit = os.environ.get(LIMIT)
    if limit is not None:
        try:
            return int(float(limit))
        except ValueError:
            raise ArgumentError(
                f"{LIMIT} must be a number of bytes, such as 8e9, got {limit!r}."
            ) from None
    kind = torch.device(device)
    if kind.type == "cuda":
        return int(torch.cuda.mem_get_info(kind)[0])
    if kind.type not in ("cpu", "meta"):
        return None
    limits = (_system_bytes(), *map(_group_bytes, _group_folders()))
    return min((limit for limit in limits if limit is not None), default=None)


def count_bytes(model: nn.Module) -> int:
    """Count the bytes of a model's parameters and buffers."""
    return sum(tensor.nbytes for tensor in model.state_dict().values())


def read_bytes(name: str, text: str) -> int:
    """Read a number of bytes as people write it: 200kB, 50 MB, 1.5GB, 4096.

    Args:
        name: What it is, for the refusal.
        text: The number, with a decimal unit or without one.

    Returns:
        The bytes.

    Raises:
        ArgumentError: If it is no number above zero.
    """
    found = _WRITTEN.fullmatch(text.strip())
    unit = "" if found is None else found[2].casefold().removesuffix("b")
    powers = ["", *(each[0].casefold() for each in _UNITS[1:])]
    if found is None or unit not in powers or not 0 < float(found[1]) < float("inf"):
        raise ArgumentError(f"{name} must be a number of bytes, got {text!r}. Try 50MB.")
    return int(float(found[1]) * 1000 ** powers.index(unit))


def format_bytes(count: int) -> str:
    """Write a number of bytes with three digits and a decimal unit."""
    value, unit = float(count), 0
    while value >= 999.5 and unit + 1 < len(_UNITS):
        value, unit = value / 1000, unit + 1
    if not unit:
        return f"{count} {_UNITS[0]}"
    places = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{places}f} {_UNITS[unit]}"


def _system_bytes() -> int | None:
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
        return next(int(li.split()[1]) * 1024 for li in lines if li[:13] == "MemAvailable:")
    except (OSError, StopIteration, ValueError):
        pass
    psutil = find_psutil()
    if psutil is not None:
        return int(psutil.virtual_memory().available)
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _group_folders() -> Iterator[Path]:
    """Find the folders of the control groups that the process may be in."""
    yield from (_GROUPS, _GROUPS / "memory")
    try:
        lines = _MEMBERSHIP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds in ("", "memory"):
            yield _GROUPS / kinds / path.lstrip("/")


def _group_bytes(folder: Path) -> int | None:
    """Read how much the limit of a control group leaves, if it has one."""
    for limit, used, reclaimable in _FILES:
        try:
            most, now = (int((folder / name).read_text("ascii")) for name in (limit, used))
            lines = (folder / "memory.stat").read_text("ascii").splitlines()
        except (OSError, ValueError):
            # Not there, or "max": no limit.
            continue
        cached = sum(int(li.split()[1]) for li in lines if li.split()[0] == reclaimable)
        return max(0, most - now + cached)
    return None


def lay_out(tensor: Tensor) -> Tensor:
    """Return a tensor that lies in memory as a new one would, copied if need be."""
    # Kernels sum in an order that depends on strides and on where the first byte lies.
    # Eigenvectors come column after column, and a loaded tensor begins where it does in its
    # file: without this, a loaded posterior would predict other last bits.
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % _ALIGNMENT else tensor
