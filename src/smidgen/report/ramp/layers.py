"""Layers by kind and depth: `encoder.layer.3.attention.self.query` is the query of 3."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
# Words that add nothing to the word before them.
_BARE = frozenset({"dense", "linear", "*"})


@dataclass(frozen=True)
class LayerPosition:
    """Where an affine layer is: its kind in few words, and its block's number if any."""

    kind: str
    depth: int | None


def locate_layers(names: Sequence[str]) -> dict[str, LayerPosition]:
    """Find the kind and the depth of each affine layer from its name."""
    numbers = {name: _NUMBER.search(name) for name in names}
    kinds = {name: _NUMBER.sub("*", name, count=1) for name in names}
    short = _shorten_kinds(list(dict.fromkeys(kinds.values())))
    return {
        name: LayerPosition(short[kinds[name]], int(match.group()) if match else None)
        for name, match in numbers.items()
    }


def _shorten_kinds(kinds: Sequence[str]) -> dict[str, str]:
    """Name each kind by as few of its last words as tell it from all others."""
    words = {kind: _drop_bare(kind.rpartition("*.")[2].split(".")) for kind in kinds}
    lengths = dict.fromkeys(kinds, 1)

    def shorten() -> list[str]:
        return [".".join(words[kind][-lengths[kind] :]) for kind in kinds]

    for _ in range(max(map(len, words.values()), default=0)):
        names = shorten()
        for kind, name in zip(kinds, names, strict=True):
            lengths[kind] += names.count(name) > 1
    names = shorten()
    return {
        kind: name if names.count(name) == 1 else kind
        for kind, name in zip(kinds, names, strict=True)
    }


def _drop_bare(words: list[str]) -> list[str]:
    """Leave out a last word that adds nothing."""
    if len(words) > 1 and words[-1] in _BARE:
        return words[:-1]
    return ["layers"] if words == ["*"] else words
