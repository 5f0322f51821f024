"""`Kind`: one kind of modules that have affine layers, and where their matrices are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from smidgen.types import Shape


@dataclass(frozen=True)
class Matrix:
    """One matrix of a module: names of its parameters, and the axes of the weight that are rows.

    `site` is where it is called, below the module, or "" if that is the module itself. `axes`
    is how many the stored weight has if it is not packed.
    """

    weight: str = "weight"
    bias: str | None = "bias"
    site: str = ""
    axes: int = 2
    row_axes: tuple[int, ...] = (0,)
    groups: int = 1


CutPatches = Callable[[nn.Module, Tensor, Tensor | None, Shape], Tensor]
"""From a module, its inputs, the chosen channels of each group (or None for all) and the sizes
of its outputs to patches (B, T, groups, channels · kernel)."""


@dataclass(frozen=True)
class Kind:
    """One row of the table of kinds.

    `find` lists the matrices of a module that is of this kind, says in words why one that
    looks so is not, and returns None for all others. Kinds that multiply with `patches` of
    their inputs have the channels of inputs and outputs second; all others have features last.
    """

    name: str
    find: Callable[[nn.Module], tuple[Matrix, ...] | str | None]
    patches: CutPatches | None = None
