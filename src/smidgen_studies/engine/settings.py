"""Settings of kinds and data: dataclasses filled from a study's file, checked by their types.

A type says everything, `epochs: Count` or `by: Literal["magnitude", "random"]`, so a wrong
value is refused before the first cell starts and not by a cell hours later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from math import inf
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from smidgen.errors import ArgumentError, did_you_mean

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Rule:
    """What a value must be, in words and as a test of values that have the right type."""

    words: str
    holds: Callable[[Any], bool]


Natural = Annotated[int, Rule("a whole number, 0 or more", lambda value: value >= 0)]
Count = Annotated[int, Rule("a whole number, 1 or more", lambda value: value >= 1)]
Several = Annotated[int, Rule("a whole number, 2 or more", lambda value: value >= 2)]
Draws = Annotated[int, Rule("0, or a whole number, 2 or more", lambda n: n == 0 or n > 1)]
Positive = Annotated[float, Rule("a number > 0", lambda value: 0 < value < inf)]
Unsigned = Annotated[float, Rule("a number, 0 or more", lambda value: 0 <= value < inf)]
Fraction = Annotated[float, Rule("a number in (0, 1]", lambda value: 0 < value <= 1)]
Percent = Annotated[float, Rule("a number in (0, 100]", lambda value: 0 < value <= 100)]
Fractions = Annotated[tuple[Fraction, ...], Rule("a list of numbers in (0, 1]", bool)]
Percents = Annotated[tuple[Percent, ...], Rule("a list of numbers in (0, 100]", bool)]
Rates = Annotated[tuple[Positive, ...], Rule("a list of numbers > 0", bool)]

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def read_settings(kind: type[Settings], values: Mapping[str, Any], where: str) -> Settings:
    """Fill a dataclass from a study's file; `where` names it in errors, lists become tuples."""
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise ArgumentError(
                f"{where} has no setting {name!r}. It has {', '.join(known) or 'none'}."
            )
    for name, field in known.items():
        if name not in values and field.default is field.default_factory is MISSING:
            raise ArgumentError(
                f"{where} must have a value for {name!r}, got none. Add it."
            )
    frozen = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
    for name, hint in type_hints(kind).items():
        if name in frozen and not fits(frozen[name], hint):
            choices = [choice for choice in get_args(hint) if isinstance(choice, str)]
            raise ArgumentError(
                f"{name} of {where} must be {describe_type(hint)}, got {values[name]!r}."
                f"{did_you_mean(str(values[name]), choices)}"
            )
    try:
        return kind(**frozen)
    except ArgumentError as error:
        raise ArgumentError(f"{where}: {error}") from error


def type_hints(kind: type) -> Mapping[str, Any]:
    """The types of a dataclass by name; none if it names types that cannot be found."""
    try:
        return get_type_hints(kind, include_extras=True)
    except NameError:
        # A user's kind may import some of them for its type checker alone.
        return {}


def fits(value: Any, hint: Any) -> bool:
    """Say whether a value has a type; a type that is not listed here allows every value."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        rules = (part for part in parts[1:] if isinstance(part, Rule))
        return fits(value, parts[0]) and all(rule.holds(value) for rule in rules)
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is tuple and parts[1:] == (...,):
        return isinstance(value, tuple) and all(fits(item, parts[0]) for item in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            fits(item, parts[1]) for item in value.values()
        )
    if hint in (int, float):
        # TOML's true is no number, and its 3 may stand for 3.0.
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return isinstance(value, hint) if hint in (bool, str, NoneType) else True


def describe_type(hint: Any) -> str:
    """Say in words what a value of a type must be."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        rules = [part.words for part in parts[1:] if isinstance(part, Rule)]
        return " and ".join(rules) or describe_type(parts[0])
    if origin in (Union, UnionType):
        return " or ".join(describe_type(part) for part in parts if part is not NoneType)
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if origin is tuple and parts[1:] == (...,):
        return f"a list in which each value is {describe_type(parts[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a table in which each value is {describe_type(parts[1])}"
    return _WORDS.get(hint, str(hint))
