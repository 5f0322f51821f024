"""Every kind of posterior, one row each; a new kind is registered only here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smidgen.posterior.base import Posterior
from smidgen.posterior.cost.laplace import LAPLACE_COSTS
from smidgen.posterior.cost.model import CostModel
from smidgen.posterior.cost.swag import SWAG_COSTS
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.point import PointPosterior
from smidgen.posterior.sparse import SparsePosterior
from smidgen.posterior.swag import SwagPosterior


@dataclass(frozen=True)
class PosteriorKind:
    """One method: the class its fit returns, and how its cost is counted, if it is."""

    posterior: type[Posterior]
    costs: CostModel | None = None


POSTERIORS: Mapping[str, PosteriorKind] = {
    kind.posterior.method: kind
    for kind in (
        PosteriorKind(LaplacePosterior, LAPLACE_COSTS),
        PosteriorKind(SwagPosterior, SWAG_COSTS),
        PosteriorKind(SparsePosterior),
        PosteriorKind(PointPosterior),
    )
}
"""The kinds by method; the fit of method "x" is `smidgen.fit.x`."""
