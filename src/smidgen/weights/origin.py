"""`Origin`: who chose a subset, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from smidgen.runtime.reading import make_from_json
from smidgen.types import Json

LAST_LAYER_ORIGIN = "last-layer"
"""Who chose a last layer; also a setting of others that chose one besides."""


@dataclass(frozen=True)
class Origin:
    """The selector that chose a subset, with its settings.

    Args:
        selector: A name of `smidgen.select.SELECTORS`, the method that trained the
            active set, or "union", "intersection" or "complement".
        settings: What the selector was given, as JSON values.
    """

    selector: str
    settings: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))

    def __hash__(self) -> int:
        return hash((self.selector, tuple(self.settings)))

    def __reduce__(self) -> tuple[object, ...]:
        return Origin, (self.selector, dict(self.settings))

    def __str__(self) -> str:
        settings = (f"{name}={value}" for name, value in self.settings.items())
        return f"{self.selector}({', '.join(settings)})" if self.settings else self.selector

    def parts(self) -> list[Origin]:
        """List itself, or the origins of the subsets that it is the union of."""
        joined: Any = self.settings.get("of") if self.selector == "union" else None
        if joined is None:
            return [self]
        origins = (Origin.from_json(one) for one in joined)
        return [part for origin in origins if origin for part in origin.parts()]

    def to_json(self) -> dict[str, Json]:
        """Write the origin as JSON values, for `from_json`."""
        return {"selector": self.selector, "settings": dict(self.settings)}

    @classmethod
    def from_json(cls, stored: object) -> Origin | None:
        """Read what `to_json` wrote; None where nothing was stored."""
        if stored is None:
            return None
        return make_from_json(cls, stored)


def combine_origins(operation: str, *origins: Origin | None) -> Origin | None:
    """Name the set operation that made a subset of others; None if no origin is known."""
    if not any(origins):
        return None
    return Origin(operation, {"of": [o.to_json() if o else None for o in origins]})
