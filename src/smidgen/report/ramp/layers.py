"""Maps by kind and layer: `encoder.layer.3.attention.self.query` is the query of 3."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
# What says nothing where the word before it says something.
_BARE = frozenset({"dense", "linear", "*"})


@dataclass(frozen=True)
class Place:
    """Where a layer is: its kind in few words, and the number of its layer if it has one."""

    kind: str
    layer: int | None


def places(names: Sequence[str]) -> dict[str, Place]:
    """Find the kind and the layer of each layer from its name.

    Args:
        names: Dotted names of layers.

    Returns:
        Their places; no two layers share one.
    """
    numbers = {name: _NUMBER.search(name) for name in names}
    kinds = {name: _NUMBER.sub("*", name, count=1) for name in names}
    short = _shortened(list(dict.fromkeys(kinds.values())))
    return {
        name: Place(short[kinds[name]], int(found.group()) if found else None)
        for name, found in numbers.items()
    }


def _shortened(kinds: Sequence[str]) -> dict[str, str]:
    """Name each kind by as few of its last words as tell it from all others."""
    words = {kind: _telling(kind.rpartition("*.")[2].split(".")) for kind in kinds}
    taken = dict.fromkeys(kinds, 1)

    def short(kind: str) -> str:
        return ".".join(words[kind][-taken[kind] :])

    for _ in range(max(map(len, words.values()), default=0)):
        found = [short(kind) for kind in kinds]
        for kind, name in zip(kinds, found, strict=True):
            taken[kind] += found.count(name) > 1
    found = [short(kind) for kind in kinds]
    return {
        kind: name if found.count(name) == 1 else kind
        for kind, name in zip(kinds, found, strict=True)
    }


def _telling(words: list[str]) -> list[str]:
    """Leave out a last word that says nothing."""
    if len(words) > 1 and words[-1] in _BARE:
        return words[:-1]
    return ["layers"] if words == ["*"] else words
