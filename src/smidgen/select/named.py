"""Whole parameters by name: shell patterns such as `*.classifier.*`."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from smidgen.errors import ArgumentError, SubsetError, require_kind
from smidgen.runtime.keeping.structure import unwrap
from smidgen.weights.affine import coverage
from smidgen.weights.origin import Origin
from smidgen.weights.subset import Subset, Whole


def named(model: nn.Module, patterns: str | Sequence[str]) -> Subset:
    """Choose whole parameters whose names match any of the patterns.

    Args:
        model: The trained model.
        patterns: One shell pattern or several, matched against parameter names.

    Returns:
        The parameters. Its universe is that of the affine layers and of what was named.

    Raises:
        ArgumentError: If patterns are no texts.
        SubsetError: If a pattern matches no parameter.
    """
    require_kind("model", model, nn.Module, "Of a Problem, pass its .model")
    model = unwrap(model)
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(patterns, Sequence) or not all(isinstance(p, str) for p in patterns):
        raise ArgumentError(
            f"patterns must be a shell pattern or several, got {patterns!r}. Try "
            "'classifier.*'."
        )
    patterns = list(patterns)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    chosen: dict[str, tuple[int, ...]] = {}
    for pattern in patterns:
        matched = {n: s for n, s in shapes.items() if fnmatchcase(n, pattern)}
        if not matched:
            raise SubsetError(
                f"patterns must each match a parameter, got {pattern!r}, which matches "
                f"none of {len(shapes)}. Names look like {next(iter(shapes), 'none')!r}."
            )
        chosen.update(matched)
    universe = {**coverage(model).universe, **chosen}
    parts = {name: Whole() for name in shapes if name in chosen}
    return Subset(universe, parts, Origin("named", {"patterns": patterns}))
