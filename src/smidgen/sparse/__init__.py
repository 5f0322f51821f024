"""Gaussian weights on a sparse active set that moves: SSVI (DESIGN 4.8).

Li, Miao, Qiu and Zhang, Training Bayesian neural networks with sparse subspace
variational inference, ICLR 2024 (arXiv:2402.11025). Between steps every layer holds k
means, k scales and k indices and nothing of the size of its weight (the sparse path also
keeps orders made from the indices, of size k); within a step its dense path writes weights
out, its sparse path never. `pattern` and `products` compute with them, `removal` and
`addition` say which weights go and come, `alternation` does it.
"""

from smidgen.sparse.build import SparseSettings, make_sparse
from smidgen.sparse.network import SparseNetwork
from smidgen.sparse.prune import prune_network
from smidgen.sparse.rewire import Rewiring, Schedule

__all__ = [
    "Rewiring",
    "Schedule",
    "SparseNetwork",
    "SparseSettings",
    "prune_network",
    "make_sparse",
]
