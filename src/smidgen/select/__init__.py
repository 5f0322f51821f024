"""Selectors: each makes a `Subset` from a model."""

from smidgen.select.last_layer import last_layer
from smidgen.select.modules import modules
from smidgen.select.named import named
from smidgen.select.sparse_kfac import sparse_kfac
from smidgen.select.weights import weights

__all__ = ["last_layer", "modules", "named", "sparse_kfac", "weights"]
