"""What a record notes of a posterior: its settings, its size, its curve and its subset."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from smidgen.outputs.problem import Problem
from smidgen.posterior.laplace import LaplacePosterior, Tuning
from smidgen.posterior.sampling import SAMPLES
from smidgen.posterior.swag import SwagPosterior
from smidgen.weights.affine import coverage
from smidgen.weights.blocks import find_blocks
from smidgen.weights.subset import Subset


def posterior_settings(posterior: LaplacePosterior | SwagPosterior) -> dict[str, Any]:
    """List what was chosen on held-out data, as a record's method notes it."""
    if isinstance(posterior, LaplacePosterior):
        found = posterior.precisions.values()
        low, high = min(found), max(found)
        return {
            **({"precision": low} if low == high else {"precision_range": [low, high]}),
            "temperature": posterior.temperature,
            "precision_at_edge": bool(posterior.tuning and posterior.tuning.at_edge),
        }
    return {
        "temperature": posterior.temperature,
        "learning_rate": posterior.learning_rate,
        "rates": [rate for rate, _ in posterior.rates],
        "snapshots": posterior.snapshots,
        "samples": posterior.tuning.samples if posterior.tuning else SAMPLES,
    }


def posterior_summary(posterior: LaplacePosterior | SwagPosterior) -> dict[str, Any]:
    """List the size of a tuned posterior, and how held-out data chose it."""
    assert posterior.tuning is not None
    own: dict[str, Any]
    if isinstance(posterior, LaplacePosterior):
        own = {"precision": posterior.plain_precision}
    else:
        own = {"learning_rate": posterior.learning_rate}
    return {
        "weights": posterior.subset.size,
        "fraction": posterior.subset.fraction,
        "floats": posterior.floats,
        **own,
        "temperature": posterior.temperature,
        "tuning": asdict(posterior.tuning),
    }


def precision_curve(posterior: LaplacePosterior) -> dict[str, Any] | None:
    """List the validation NLL over the grid of precisions, for a figure."""
    tuning: Tuning | None = posterior.tuning
    if tuning is None:
        return None
    return {
        "precision": list(tuning.precisions),
        "nll": list(tuning.nll),
        "nll_with_temperature": list(tuning.joint_nll),
        # Several precisions are not one point of the curve.
        "chosen_precision": posterior.precision
        if isinstance(posterior.precision, float)
        else None,
        "chosen_precisions": posterior.precisions,
        "chosen_temperature": posterior.temperature,
        "map_nll": tuning.map_nll,
        "temperature_nll": tuning.map_scaled_nll,
    }


def subset_summary(
    problem: Problem,
    posterior: LaplacePosterior | SwagPosterior,
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
