"""How uncertain single weights are, to choose among them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

import smidgen.fit as fit
import smidgen.select as select
from smidgen.outputs.problem import Problem, as_problem
from smidgen.types import Batch


def marginal_variances(
    model: nn.Module | Problem, train: Iterable[Batch], *, progress: bool = False
) -> dict[str, Tensor]:
    """Fit a diagonal posterior over all affine layers and return its variances."""
    problem = as_problem(model)
    everything = select.sparse_kfac(problem.model, percent=100)
    posterior = fit.laplace(problem, train, everything, structure="diag", progress=progress)
    return select.scores.variance(posterior, problem)
