"""Options that take several values: repeated, or with commas between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from smidgen.errors import ArgumentError

Word = TypeVar("Word", bound=str)


def words(given: list[str] | None) -> list[str]:
    """Split the values of an option."""
    parts = [part.strip() for item in given or [] for part in item.split(",")]
    return [part for part in parts if part]


def numbers(
    option: str,
    given: list[str] | None,
    most: float,
    example: str,
    *,
    percent: bool = False,
) -> tuple[float, ...]:
    """Read numbers above zero.

    Args:
        option: The option's name, for errors.
        given: Its values.
        most: The largest number it may hold.
        example: What to try instead.
        percent: Whether a number may have a percent sign.

    Returns:
        The numbers, none if the option was left out.

    Raises:
        ArgumentError: If a value is no such number.
    """
    found = []
    for word in words(given):
        try:
            value = float(word.removesuffix("%") if percent else word)
        except ValueError:
            value = float("nan")
        if not 0 < value <= most or value == float("inf"):
            bound = f"in (0, {most:g}]" if most < float("inf") else "> 0"
            raise ArgumentError(
                f"{option} must be numbers {bound}, got {word!r}. Try {example}."
            )
        found.append(value)
    return tuple(found)


def some_of(
    option: str, given: list[str] | None, known: Sequence[Word]
) -> tuple[Word, ...]:
    """Read some of several known words; all of them if the option was left out.

    Args:
        option: The option's name, for errors.
        given: Its values.
        known: The words it may hold.

    Returns:
        The words, each once.

    Raises:
        ArgumentError: If a value is not among them.
    """
    found: dict[Word, None] = {}
    for word in words(given):
        match = next((each for each in known if each == word), None)
        if match is None:
            raise ArgumentError(
                f"{option} must be some of {', '.join(known)}, got {word!r}."
            )
        found[match] = None
    return tuple(found) or tuple(known)
