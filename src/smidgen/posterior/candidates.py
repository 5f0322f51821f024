"""Subsets that a plan compares a choice with, and what they are called there."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from smidgen.weights.affine import require_coverage
from smidgen.weights.subset import Subset

LAST_LAYER = "last layer"
# Of Sparse-KFAC.
_PERCENTS = (1, 3, 10, 30, 100)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A subset in a structure, by the name it is shown under."""

    name: str
    structure: str
    subset: Subset
    chosen: bool = False


def compared_subsets(model: nn.Module) -> dict[str, Subset]:
    """Sparse-KFAC's of several sizes by name, and the last layer if there is one."""
    found = require_coverage(model)
    listed = {sparse_name(each): found.row_column_blocks(each / 100) for each in _PERCENTS}
    last = found.last()
    return listed if last is None else {**listed, LAST_LAYER: last}


def sparse_name(percent: float) -> str:
    """What a Sparse-KFAC percentage is called in a table."""
    return f"sparse-kfac {percent:g} %"
