"""What a record notes of a posterior's subset."""

from __future__ import annotations

from typing import Any

from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Posterior
from smidgen.weights.affine import coverage
from smidgen.weights.blocks import find_blocks
from smidgen.weights.subset import Subset


def subset_summary(
    problem: Problem,
    posterior: Posterior,
    percent: float | None = None,
) -> dict[str, Any]:
    """List which rows and columns of which layer are stochastic, for a picture."""
    subset = posterior.subset
    affine = coverage(problem.model).universe
    parts = {name: part for name, part in subset.parts.items() if name in affine}
    summary: dict[str, Any] = {
        "size": subset.size,
        "total": subset.total,
        "fraction": subset.fraction,
        "maps": [
            {
                "name": block.layer.name,
                "group": block.layer.group,
                "outputs": block.layer.outputs,
                "inputs": block.layer.inputs,
                "rows": block.rows.tolist(),
                "columns": block.columns.tolist(),
            }
            for block in (
                find_blocks(problem.model, Subset(subset.universe, parts)) if parts else ()
            )
        ],
    }
    return summary if percent is None else {"percent": percent, **summary}
