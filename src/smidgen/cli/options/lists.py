"""Options that take several values: repeat them, or separate values by commas."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

from typer import BadParameter, CallbackParam

from smidgen.errors import ArgumentError, DataError

Word = TypeVar("Word", bound=str)
Paths: TypeAlias = Path | list[Path] | None


def require_one_of(known: Collection[str]) -> Callable[[str | None], str | None]:
    """Make the callback of an option that takes one of several names."""

    def check(name: str | None) -> str | None:
        if name is not None and name not in known:
            raise BadParameter(f"{name!r} is not one of {', '.join(known)}.")
        return name

    return check


def require_files(option: CallbackParam, paths: Paths) -> Paths:
    """Check before any work, as an option's callback, that the file to read is there."""
    for path in _list(paths):
        refuse_missing(max(option.opts, key=len), path)
    return paths


def require_files_or_folders(option: CallbackParam, paths: Paths) -> Paths:
    """Check the same of data that may be a folder of files."""
    for path in _list(paths):
        refuse_missing(max(option.opts, key=len), path, folder=True)
    return paths


def _list(paths: Paths) -> list[Path]:
    return [paths] if isinstance(paths, Path) else paths or []


def refuse_missing(option: str, path: Path, *, folder: bool = False) -> None:
    """Refuse a path where there is no file, or no folder if it may be one."""
    if not path.is_file() and not (folder and path.is_dir()):
        kind = "a file or folder" if folder else "a file"
        raise DataError(
            f"{option} must be {kind} that exists, got {str(path)!r}. Check its name."
        )


def split_words(values: list[str] | None) -> list[str]:
    """Split the values of an option at commas."""
    parts = [part.strip() for item in values or [] for part in item.split(",")]
    return [part for part in parts if part]


def read_numbers(
    option: str,
    values: list[str] | None,
    most: float,
    example: str,
    *,
    percent: bool = False,
) -> tuple[float, ...]:
    """Read positive numbers; an option that was left out has none."""
    numbers = []
    for word in split_words(values):
        try:
            value = float(word.removesuffix("%") if percent else word)
        except ValueError:
            value = float("nan")
        if not 0 < value <= most or value == float("inf"):
            bound = f"in (0, {most:g}]" if most < float("inf") else "> 0"
            raise ArgumentError(
                f"{option} must be numbers {bound}, got {word!r}. Try {example}."
            )
        numbers.append(value)
    return tuple(numbers)


def read_choices(
    option: str, values: list[str] | None, known: Sequence[Word]
) -> tuple[Word, ...]:
    """Read some of several known words; all of them if the option was left out."""
    choices: dict[Word, None] = {}
    for word in split_words(values):
        match = next((choice for choice in known if choice == word), None)
        if match is None:
            raise ArgumentError(
                f"{option} must be some of {', '.join(known)}, got {word!r}. Leave it out "
                "for all."
            )
        choices[match] = None
    return tuple(choices) or tuple(known)
