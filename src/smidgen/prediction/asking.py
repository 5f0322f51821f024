"""What every way to predict checks of what it is given, and gives back for a loader."""

from __future__ import annotations

from collections.abc import Sequence

from torch.utils.data import DataLoader

from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.predictive import Predictive, concatenate
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.swag import SwagPosterior
from smidgen.types import Batch


def refuse_loader(batch: Batch, instead: str) -> None:
    """Refuse a loader where one batch is asked for.

    Args:
        batch: What was given.
        instead: The function that takes a loader.

    Raises:
        ArgumentError: If it is a loader.
    """
    if isinstance(batch, DataLoader):
        raise ArgumentError(
            f"batch must be one batch, got a DataLoader. Use smidgen.{instead}."
        )


def require_posterior(posterior: object) -> None:
    """Refuse arguments in another order.

    Args:
        posterior: What was given first.

    Raises:
        ArgumentError: If it is no posterior.
    """
    if not isinstance(posterior, LaplacePosterior | SwagPosterior):
        raise ArgumentError(
            f"posterior must be a smidgen posterior, got {type(posterior).__name__}. The "
            "order is (posterior, model, batch)."
        )


def joined(predictives: Sequence[Predictive]) -> Predictive:
    """Join the predictives of a loader's batches.

    Args:
        predictives: One for each batch.

    Returns:
        One for all examples.

    Raises:
        DataError: If there was no batch.
    """
    if not predictives:
        raise DataError("the data loader yielded no batch. Check the dataset's length.")
    return concatenate(predictives)
