"""How uncertain single weights are, before any of them is chosen."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from smidgen import fit, select
from smidgen.outputs.problem import Problem, as_problem
from smidgen.types import Batch


def marginal_variances(
    model: nn.Module | Problem, train: Iterable[Batch], *, progress: bool = False
) -> dict[str, Tensor]:
    """Fit a diagonal posterior over all affine layers and take its variances.

    Args:
        model: The trained model, or its `Problem`.
        train: Training batches.
        progress: Draw a progress bar; in a log, a line a minute.

    Returns:
        Scores by parameter name, as `select.weights` takes them.
    """
    problem = as_problem(model)
    everything = select.sparse_kfac(problem.model, percent=100)
    plain = fit.laplace(problem, train, everything, structure="diag", progress=progress)
    return select.scores.variance(plain, problem)
