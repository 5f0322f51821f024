"""Sparse-KFAC's selector: the dense crossing of a layer's largest rows and columns.

Kampen, Als and Andersen (UAI 2024): r_i = max_j |W_ij|, c_j = max_i |W_ij|; keep the
top percent of rows and, independently, of columns, and the biases of the kept rows. Of
n rows max(1, ⌈percent·n/100⌉) stay and ties go to the lower index, so the selections
are nested in percent. Any other score of the weights may take the place of |W_ij|.
"""

from __future__ import annotations

from torch import nn

from smidgen.errors import ArgumentError
from smidgen.select.ranking import (
    By,
    check_percent,
    describe_ranking,
    iterate_scores,
    pick_largest,
)
from smidgen.weights.affine import require_coverage
from smidgen.weights.origin import Origin
from smidgen.weights.subset import Part, Subset


def sparse_kfac(
    model: nn.Module,
    *,
    percent: float,
    by: By = "magnitude",
    seed: int = 0,
) -> Subset:
    """Choose the rows and columns of every affine layer that hold its largest weights.

    Args:
        model: The trained model.
        percent: Percent of rows and of columns, in (0, 100]. About its square
            of the weights is chosen: 10 percent of rows and columns is 1 percent of them.
        by: What makes a weight large: "magnitude", "random", or scores by parameter
            name, as `smidgen.select.scores` makes them. Scores of biases do not count.
        seed: Seed of a random choice.

    Returns:
        A block of every affine layer, or of those whose weight has scores.

    Raises:
        ArgumentError: If no weight matrix has scores.
    """
    fraction = check_percent(percent)
    coverage = require_coverage(model)
    layers = {layer.weight: layer for layer in coverage.layers}
    parts: dict[str, Part] = {}
    for name, scores in iterate_scores(model, by, seed):
        if name in layers:
            matrix = layers[name].as_matrix(scores)
            rows = pick_largest(matrix.amax(1), fraction)
            columns = pick_largest(matrix.amax(0), fraction)
            parts.update(layers[name].parts(rows, columns))
    if not parts:
        raise ArgumentError(
            "by must hold scores of at least one weight matrix, got biases only. Names "
            f"look like {coverage.layers[0].weight!r}."
        )
    name = "sparse-kfac-random" if by == "random" else "sparse-kfac"
    origin = Origin(name, {"percent": percent, **describe_ranking(by, seed)})
    return Subset(coverage.universe, parts, origin)
