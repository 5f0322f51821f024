"""`calibrate`: choose precision and temperature of any posterior on held-out data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar, cast

from torch import nn

from smidgen.errors import ArgumentError
from smidgen.fit.calibration.precision import CalibrationSettings, calibrate_precision
from smidgen.fit.calibration.samples import calibrate_from_outputs, held_out
from smidgen.outputs.link_choice import Link
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.base import Posterior
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.runtime.progress import track
from smidgen.types import Batch

Kind = TypeVar("Kind", bound=Posterior)


def calibrate(
    posterior: Kind,
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    *,
    settings: CalibrationSettings | None = None,
    link: str | Link = "auto",
    samples: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Kind:
    """Choose precision and temperature on held-out data; a regression's noise likewise.

    A linearised posterior gets both in one pass. One that predicts by draws gets the
    temperature that suits their mixture.

    Args:
        posterior: The posterior.
        model: The model it belongs to, or its `Problem`. It is left as it was.
        batches: Labelled batches that neither trained the model nor will test it.
        settings: What to choose and from what, for a linearised posterior.
        link: How a linearised posterior's logits become probabilities meanwhile.
        samples: How many draws, for a posterior that predicts by them.
        seed: Seed of the draws.
        progress: Draw a progress bar; in a log, a line a minute.

    Returns:
        The same posterior with what was chosen, and how in `calibration`.

    Raises:
        ArgumentError: If posterior is none, or an argument does not go with its kind.
    """
    if not isinstance(posterior, Posterior):
        raise ArgumentError(
            f"posterior must be a smidgen posterior, got {type(posterior).__name__}. The "
            "order is (posterior, model, batches)."
        )
    problem = as_problem(model).with_likelihood(posterior.likelihood)
    tracked = track(batches, "calibrating", show=progress)
    if not posterior.linearised:
        if settings is not None:
            raise ArgumentError(
                f"settings are for posteriors with a prior precision, and one of "
                f"{posterior.method} has none. Leave them out."
            )
        count = posterior.samples if samples is None else samples
        held = held_out(problem, posterior, tracked, samples=count, seed=seed)
        return calibrate_from_outputs(posterior, held)
    if samples is not None:
        raise ArgumentError(
            f"samples must be left out for a {posterior.method} posterior, which predicts "
            f"without draws, got {samples}."
        )
    chosen = link if isinstance(link, Link) else Link(link)
    laplace = cast(LaplacePosterior, posterior)
    how = settings or CalibrationSettings()
    return cast(Kind, calibrate_precision(laplace, problem, tracked, how, chosen))
