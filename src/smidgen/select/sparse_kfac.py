"""Sparse-KFAC's selector: the dense crossing of a layer's largest rows and columns.

Kampen, Als and Andersen (UAI 2024): r_i = max_j |W_ij|, c_j = max_i |W_ij|; keep the
top percent of rows and, independently, of columns, and the biases of the kept rows. Of
n rows max(1, ⌈percent·n/100⌉) stay and ties go to the lower index, so the selections
are nested in percent. Any other score of the weights may take the place of |W_ij|.
"""

from __future__ import annotations

import torch
from torch import nn

from smidgen.errors import ArgumentError
from smidgen.select.ranking import By, ranking
from smidgen.select.top import percent_share, top
from smidgen.weights.affine import require_coverage
from smidgen.weights.subset import Part, Subset


def sparse_kfac(
    model: nn.Module,
    *,
    percent: float,
    by: By = "magnitude",
    generator: torch.Generator | None = None,
) -> Subset:
    """Choose the rows and columns of every affine layer that hold its largest weights.

    Args:
        model: The trained model; it is only read.
        percent: Percent of rows and of columns, in (0, 100]. The share of weights is
            about its square: 10 percent of rows and columns is 1 percent of weights.
        by: What makes a weight large: "magnitude", "random", or scores by parameter
            name, as `smidgen.select.scores` makes them. Scores of biases do not count.
        generator: Source of a random choice; required for it.

    Returns:
        A block of every affine layer, or of those whose weight has scores.

    Raises:
        ArgumentError: If no weight matrix has scores.
    """
    share = percent_share(percent)
    found = require_coverage(model)
    layers = {each.weight: each for each in found.layers}
    parts: dict[str, Part] = {}
    for name, scores in ranking(model, by, generator):
        if name in layers:
            matrix = layers[name].as_matrix(scores)
            rows, columns = top(matrix.amax(1), share), top(matrix.amax(0), share)
            parts.update(layers[name].parts(rows, columns))
    if not parts:
        raise ArgumentError(
            "by must hold scores of at least one weight matrix, got biases only. Names "
            f"look like {found.layers[0].weight!r}."
        )
    return Subset(found.universe, parts)
