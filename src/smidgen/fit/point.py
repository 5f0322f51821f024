"""Point: no stochastic weights at all, so that only a temperature, or a noise, is to be chosen.

What temperature scaling is beside: it predicts, compares, saves and loads as posteriors do.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from smidgen.outputs.batches import as_batches
from smidgen.outputs.likelihood import Gaussian
from smidgen.outputs.problem import Problem, as_problem
from smidgen.outputs.residuals import sum_squared_residuals
from smidgen.posterior.point import PointPosterior
from smidgen.runtime.guard import fingerprint, preserve_random_state
from smidgen.runtime.progress import track
from smidgen.types import Batch
from smidgen.weights.affine import coverage
from smidgen.weights.subset import Subset, check_subset


def point(
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    subset: Subset | None = None,
    *,
    progress: bool = True,
) -> PointPosterior:
    """Take the trained weights as they are: after `calibrate`, this is temperature scaling.

    Args:
        model: The trained model, or its `Problem`.
        batches: Training batches. Only the first is read, to see what the outputs mean; of
            a regression all, for its noise.
        subset: Weights that another posterior would make stochastic, to note of which none
            is here. By default those of all affine layers.
        progress: Show a progress bar.

    Returns:
        The posterior without stochastic weights, at temperature one.
    """
    if subset is not None:
        check_subset(subset)
    batches = as_batches(batches)
    problem = as_problem(model)
    with preserve_random_state(problem.model):
        tracked = track(batches, "fitting", show=progress)
        settled, _, data = problem.settle(tracked)
        likelihood, rows = settled.likelihood, 0
        if isinstance(likelihood, Gaussian):
            squares, rows = sum_squared_residuals(settled, data)
            mean = float(squares.mean()) / max(1, rows)
            likelihood = likelihood.fit_noise(mean)
    universe = coverage(problem.model).universe if subset is None else subset.universe
    return PointPosterior(
        universe=universe,
        likelihood=likelihood,
        num_data=rows,
        fingerprint=fingerprint(problem.model),
    )
