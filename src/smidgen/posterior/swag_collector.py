"""Collect SWAG's statistics in your own training loop: call `collect` now and then."""

from __future__ import annotations

from torch import nn

from smidgen.errors import ArgumentError
from smidgen.outputs.likelihood import Likelihood
from smidgen.posterior.swag import CovarianceKind, Snapshots, SwagPosterior
from smidgen.runtime.guard import fingerprint
from smidgen.weights.subset import Subset
from smidgen.weights.vector import SubsetIndex, find_parameters


class SwagCollector:
    """Collects snapshots of the chosen weights of a model that you train.

    Weights outside the subset are taken as they are when `posterior` is called, so freeze
    them, or call it when training is over.

    Args:
        model: The model in training; it is only read.
        subset: The weights to be stochastic.
        rank: How many deviations to keep, K.
        covariance: "low-rank", "diagonal" or "none".
    """

    def __init__(
        self,
        model: nn.Module,
        subset: Subset,
        *,
        rank: int = 20,
        covariance: CovarianceKind = "low-rank",
    ) -> None:
        self.model, self.subset = model, subset
        self._parameters = find_parameters(model, subset)
        self._places = SubsetIndex(subset, self._parameters)
        now = self._places.gather(self._parameters)
        self.snapshots = Snapshots(subset.size, rank, covariance, now)

    def collect(self) -> None:
        """Count the current weights as one more snapshot."""
        self.snapshots.add(self._places.gather(self._parameters))

    def posterior(self, likelihood: Likelihood, *, num_data: int = 0) -> SwagPosterior:
        """Make the posterior; do not train the model any further.

        Args:
            likelihood: What the model's outputs mean.
            num_data: How many examples it was trained on, for the record.

        Returns:
            The posterior of the model as it is now.

        Raises:
            ArgumentError: If the likelihood is not one, or there are too few snapshots.
        """
        if not isinstance(likelihood, Likelihood):
            raise ArgumentError(
                "likelihood must be smidgen.Categorical, Bernoulli or Gaussian, got "
                f"{type(likelihood).__name__}."
            )
        mean, variance, deviations = self.snapshots.moments()
        return SwagPosterior(
            subset=self.subset,
            likelihood=likelihood,
            mean=mean,
            variance=variance,
            deviations=deviations,
            fingerprint=fingerprint(self.model),
            num_data=num_data,
            snapshots=self.snapshots.count,
        )
