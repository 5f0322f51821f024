"""`NoWeights`: the subset of a point estimate, of whose weights none is stochastic.

A selector that chooses nothing is a mistake, so a `Subset` is never empty. Temperature
scaling is none: it says of which weights it leaves every single one as it was trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from smidgen.types import Shape
from smidgen.weights.origin import Origin
from smidgen.weights.subset import Part, Subset


@dataclass(frozen=True, eq=False, repr=False)
class NoWeights(Subset):
    """None of the weights of a model.

    Args:
        universe: Names and shapes of the parameters of which none is chosen.
    """

    universe: Mapping[str, Shape]
    parts: Mapping[str, Part] = field(init=False, default_factory=dict)
    origin: Origin | None = field(init=False, default=None)
    may_be_empty: ClassVar[bool] = True

    @property
    def fraction(self) -> float:
        """None of it, also where there is nothing to choose from."""
        return 0.0

    def __reduce__(self) -> tuple[object, ...]:
        return NoWeights, (dict(self.universe),)
