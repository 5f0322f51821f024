"""Every kind of posterior, one row each: a new one is registered here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from smidgen.posterior.base import Posterior
from smidgen.posterior.cost import Cost, cost
from smidgen.posterior.cost_swag import swag_cost
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.sparse import SparsePosterior
from smidgen.posterior.swag import SwagPosterior


@dataclass(frozen=True)
class PosteriorKind:
    """One method: the class its fit returns, and what its fit costs.

    Args:
        posterior: The class.
        cost: Computes what fitting and predicting take, if that can be told beforehand.
    """

    posterior: type[Posterior]
    cost: Callable[..., Cost] | None = None


POSTERIORS: Mapping[str, PosteriorKind] = {
    kind.posterior.method: kind
    for kind in (
        PosteriorKind(LaplacePosterior, cost),
        PosteriorKind(SwagPosterior, swag_cost),
        PosteriorKind(SparsePosterior),
    )
}
"""The kinds by method; the fit of method "x" is `smidgen.fit.x`."""
