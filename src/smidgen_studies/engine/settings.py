"""What the values of settings may be: read from the types of their dataclasses.

A type says it all, `epochs: Count` or `by: Literal["magnitude", "random"]`, so that a value
that will not do is refused before any cell is begun and not by the cell, hours later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Rule:
    """What values of a type may be: in words, and as a test of those that have the type."""

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
Shares = Annotated[tuple[Fraction, ...], Rule("a list of numbers in (0, 1]", bool)]
Percents = Annotated[tuple[Percent, ...], Rule("a list of numbers in (0, 100]", bool)]
Rates = Annotated[tuple[Positive, ...], Rule("a list of numbers > 0", bool)]

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def hints_of(kind: type) -> Mapping[str, Any]:
    """The types of a dataclass by name; none if it names types that cannot be found."""
    try:
        return get_type_hints(kind, include_extras=True)
    except NameError:
        # A kind of somebody's own may import some for its type checker alone.
        return {}


def fits(value: Any, hint: Any) -> bool:
    """Say whether a value has a type; types that no setting of ours has let all through."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        rules = (each for each in parts[1:] if isinstance(each, Rule))
        return fits(value, parts[0]) and all(rule.holds(value) for rule in rules)
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is tuple and parts[1:] == (...,):
        return isinstance(value, tuple) and all(fits(each, parts[0]) for each in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            fits(each, parts[1]) for each in value.values()
        )
    if hint is float:
        return fits(value, int) or isinstance(value, float)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint) if hint in (bool, str, NoneType) else True


def words(hint: Any) -> str:
    """Say what a value of a type may be."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        said = [each.words for each in parts[1:] if isinstance(each, Rule)]
        return " and ".join(said) or words(parts[0])
    if origin in (Union, UnionType):
        return " or ".join(words(part) for part in parts if part is not NoneType)
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if origin is tuple and parts[1:] == (...,):
        return f"a list, each of it {words(parts[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a table, each of it {words(parts[1])}"
    return _WORDS.get(hint, str(hint))
