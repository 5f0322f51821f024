"""Every error that smidgen raises on purpose.

A message says what is wrong, shows the value and names the next step. The command line
prints the message and nothing else.
"""

import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import TypeVar

_Settings = TypeVar("_Settings")
_PACKAGES = ("smidgen", "smidgen_studies")


class SmidgenError(Exception):
    """Anything smidgen refuses to do."""


class ArgumentError(SmidgenError, ValueError):
    """An argument has a value that is not allowed."""


class SubsetError(SmidgenError, ValueError):
    """A subset names weights that are not there, or none at all."""


class StructureError(SmidgenError, ValueError):
    """A posterior structure cannot hold this subset or this model."""


class DataError(SmidgenError, ValueError):
    """The data cannot be used as they are; `batch` is the number of theirs, from 1."""

    batch: int | None = None

    def __str__(self) -> str:
        message = super().__str__()
        return message if self.batch is None else f"batch {self.batch}: {message}"


class TooFewRowsError(DataError):
    """There are fewer rows than the promise that was asked for takes; more would do."""


class PromiseError(DataError):
    """The answers are wrong too often for the promise that was asked for, on enough rows."""


class DivergedError(DataError):
    """Training left the region where the network has finite outputs."""


class ResourceError(SmidgenError, MemoryError):
    """The work would take more memory than there is."""


class StoreError(SmidgenError):
    """A saved artifact is missing, damaged or belongs to another model."""


class SmidgenWarning(UserWarning):
    """Something the user should look at, though the result stands."""


def warn(message: str) -> None:
    """Warn at the line of the caller's that led here, however deep in the library this is."""
    # Python's `skip_file_prefixes` came with 3.12, and stops at a decorator of torch's.
    frame, level, outside = sys._getframe(1), 2, 2
    while frame.f_back is not None:
        level += 1
        if frame.f_globals.get("__name__", "").partition(".")[0] in _PACKAGES:
            outside = level
        frame = frame.f_back
    warnings.warn(message, SmidgenWarning, stacklevel=outside)


def reason(error: BaseException) -> str:
    """Take the first line of another library's error, to quote it in ours."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")[:200]


def system_reason(error: OSError) -> str:
    """Say what the system says of a file, as part of a sentence."""
    return (error.strerror or reason(error)).lower()


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Ask for a known word that is close to a refused one; empty if none is."""
    matches = get_close_matches(word, known, 1)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def how_to_add_column(name: str, found: Iterable[str]) -> str:
    """Say what to do about a column that is missing: rename one that is close to it, or add it."""
    matches = get_close_matches(name, found, 1)
    return f"Rename {matches[0]!r} to {name!r}." if matches else "Add it."


def how_to_install(extra: str) -> str:
    """Say how to install what is missing; an installed smidgen stays as it is."""
    # In double quotes, which every shell knows: cmd.exe takes single ones for letters.
    return f'pip install "smidgen[{extra}]"'


def require_kind(name: str, value: object, kind: type, advice: str) -> None:
    """Refuse an argument that is something else altogether."""
    if not isinstance(value, kind):
        raise ArgumentError(
            f"{name} must be a {kind.__name__}, got {type(value).__name__}. {advice}."
        )


def fill_settings(settings: _Settings | None, kind: type[_Settings]) -> _Settings:
    """Return the settings, or the usual ones; refuse those of something else."""
    if settings is None:
        return kind()
    require_kind("settings", settings, kind, f"Pass {kind.__name__}(...), or leave it out")
    return settings


def is_number(value: object) -> bool:
    """Whether a value is a real number: neither text nor True."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: object) -> bool:
    """Whether a value is a whole number: neither a float nor True."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def as_path(name: str, value: object) -> Path:
    """Return a path, or refuse what is none."""
    if not isinstance(value, (str, PathLike)):
        raise ArgumentError(
            f"{name} must be a path, got {type(value).__name__}. Pass a string or a Path."
        )
    return Path(value)
