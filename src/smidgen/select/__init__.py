"""Selectors: each makes a `Subset` from a model."""

from smidgen.select.last_layer import last_layer
from smidgen.select.sparse_kfac import sparse_kfac

__all__ = ["last_layer", "sparse_kfac"]
