"""Which modules of a shadow get sites: one row a kind."""

from __future__ import annotations

from torch import nn

from smidgen.runtime.sites.attention import ATTENTION_REWRITE
from smidgen.runtime.sites.experts import EXPERTS_REWRITE
from smidgen.runtime.sites.recurrent import CELLS, RECURRENT_REWRITE
from smidgen.runtime.sites.site import Rewrite, install

REWRITES: tuple[Rewrite, ...] = (ATTENTION_REWRITE, RECURRENT_REWRITE, EXPERTS_REWRITE)
"""Every kind of modules with sites."""
SITED = (nn.MultiheadAttention, nn.RNNBase, *CELLS)
"""Classes of torch that may have sites; experts of transformers have a mark."""


def open_sites(module: nn.Module) -> None:
    """Give a module of a shadow its sites, if it is of a kind that has some."""
    rewrite = next((each for each in REWRITES if each.matches(module)), None)
    # Attention of any kind must not run fused.
    if rewrite is not None or isinstance(module, nn.MultiheadAttention):
        install(module, rewrite)
