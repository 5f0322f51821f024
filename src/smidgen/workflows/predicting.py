"""The predictive of any posterior, each in the way that suits it."""

from __future__ import annotations

from collections.abc import Iterable

from smidgen.outputs.predictive import Predictive
from smidgen.outputs.problem import Problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.sampling import SAMPLES
from smidgen.posterior.swag import SwagPosterior
from smidgen.prediction import predict_batches, predict_samples_batches
from smidgen.types import Batch


def predicted(
    posterior: LaplacePosterior | SwagPosterior,
    problem: Problem,
    batches: Iterable[Batch],
    *,
    link: str = "auto",
    samples: int | None = None,
    progress: bool = True,
) -> Predictive:
    """Predict all batches: a Laplace posterior linearised, any other by weight samples.

    Args:
        posterior: The posterior.
        problem: The model it belongs to.
        batches: Any iterable of batches, read once.
        link: How outputs become probabilities, where the model is linearised.
        samples: Samples of the weights; as many as it was tuned with if left out.
        progress: Draw a progress bar; in a log, a line a minute.

    Returns:
        One predictive for all examples.
    """
    if isinstance(posterior, LaplacePosterior):
        return predict_batches(posterior, problem, batches, link=link, progress=progress)
    tuned = posterior.tuning.samples if posterior.tuning else SAMPLES
    return predict_samples_batches(
        posterior, problem, batches, samples=samples or tuned, progress=progress
    )
