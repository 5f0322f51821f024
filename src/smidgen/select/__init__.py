"""Selectors: each makes a `Subset` from a model."""

from smidgen.select import scores
from smidgen.select.bayestune import bayestune
from smidgen.select.last_layer import last_layer
from smidgen.select.modules import modules
from smidgen.select.named import named
from smidgen.select.registry import SELECTORS, Selector, choose
from smidgen.select.sparse_kfac import sparse_kfac
from smidgen.select.weights import weights
from smidgen.weights.top_k import top_k_overlap

__all__ = [
    "SELECTORS",
    "Selector",
    "bayestune",
    "choose",
    "last_layer",
    "modules",
    "named",
    "top_k_overlap",
    "scores",
    "sparse_kfac",
    "weights",
]
