"""Sparse-KFAC's selector: the dense crossing of a map's largest rows and columns.

Kampen, Als and Andersen (UAI 2024): r_i = max_j |W_ij|, c_j = max_i |W_ij|; keep the
top percent of rows and, independently, of columns, and the biases of the kept rows. Of
n rows max(1, ⌈percent·n/100⌉) stay and ties go to the lower index, so the selections
are nested in percent.
"""

from __future__ import annotations

from torch import nn

from smidgen.affine import affine_coverage
from smidgen.errors import ArgumentError
from smidgen.select.top import top
from smidgen.subset import Part, Subset


def sparse_kfac(model: nn.Module, *, percent: float) -> Subset:
    """Choose the rows and columns of every affine map that hold its largest weights.

    Args:
        model: The trained model; it is only read.
        percent: Percent of rows and of columns, in (0, 100]. The share of weights is
            about its square: 10 percent of rows and columns is 1 percent of weights.

    Returns:
        A block of every affine map.

    Raises:
        ArgumentError: If percent is not in (0, 100], or a weight is NaN.
    """
    if not isinstance(percent, (int, float)) or not 0 < percent <= 100:
        raise ArgumentError(
            f"percent must be in (0, 100], got {percent!r}. It is percent of rows and of "
            "columns: try 10."
        )
    found = affine_coverage(model)
    parts: dict[str, Part] = {}
    for each in found.maps:
        magnitude = each.matrix(model).abs()
        if magnitude.isnan().any():
            raise ArgumentError(
                f"model must have finite weights, got NaN in {each.weight!r}. Train or "
                "load it again."
            )
        rows = top(magnitude.amax(1), percent / 100)
        columns = top(magnitude.amax(0), percent / 100)
        parts.update(each.parts(rows, columns))
    return Subset(found.universe, parts)
