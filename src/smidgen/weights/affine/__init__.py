"""The affine layers a = W x + b of a model: what they are, and which modules have them."""

from smidgen.weights.affine.coverage import (
    Coverage,
    coverage,
    find_opaque,
    require_coverage,
)
from smidgen.weights.affine.layer import AffineLayer, ceil_fraction

__all__ = [
    "AffineLayer",
    "Coverage",
    "ceil_fraction",
    "coverage",
    "find_opaque",
    "require_coverage",
]
