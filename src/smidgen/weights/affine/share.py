"""How much of a model its affine layers are: said before a fit if it is less than half.

Counted are the entries of all parameters with two axes or more, the tables of embeddings left
out: what could be a matrix of a layer. Norms and biases have one axis, and packed integers
none that could be told.
"""

from __future__ import annotations

from collections import Counter

from torch import nn

from smidgen.errors import warn
from smidgen.weights.affine.coverage import coverage
from smidgen.weights.origin import LAST_LAYER_ORIGIN
from smidgen.weights.subset import Subset

_TABLES = (nn.Embedding, nn.EmbeddingBag)
# Who names the weights wanted, and does not look for them in all layers.
_NAMING = frozenset((LAST_LAYER_ORIGIN, "named", "bayestune"))


def warn_of_little_covered(model: nn.Module, subset: Subset) -> None:
    """Warn of a subset that was looked for in all layers if they are less than half of a model."""
    if subset.origin is None or {o.selector for o in subset.origin.parts()} <= _NAMING:
        return
    tables = {
        id(p) for m in model.modules() if isinstance(m, _TABLES) for p in m.parameters()
    }
    covered = coverage(model).universe
    inside, outside = 0, Counter[str]()
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2 or id(parameter) in tables:
            continue
        if name in covered:
            inside += parameter.numel()
        else:
            owner = model.get_submodule(name.rpartition(".")[0])
            outside[type(owner).__name__] += parameter.numel()
    total = inside + outside.total()
    if 2 * inside < total:
        kind, size = outside.most_common(1)[0]
        warn(
            f"only {inside / total:.0%} of the model's {total:,} weights in matrices (tables of "
            f"embeddings not counted) are in affine layers, from which the subset was chosen. "
            f"Most of the others, {size:,}, are in {kind}. Print smidgen.coverage(model) to see "
            "why."
        )
