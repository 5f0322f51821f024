"""`calibrate`: choose the precision and temperature of any posterior on held-out data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar, cast

from torch import nn

from smidgen.errors import ArgumentError, fill_settings
from smidgen.fit.calibration.precision import CalibrationSettings, calibrate_precision
from smidgen.fit.calibration.samples import calibrate_from_outputs, held_out
from smidgen.outputs.batches import as_batches
from smidgen.outputs.links import Link
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.base import Posterior, SampleCalibration
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.processes.sharded_rows import refuse_shard
from smidgen.runtime.progress import track
from smidgen.types import Batch

_Kind = TypeVar("_Kind", bound=Posterior)


def calibrate(
    posterior: _Kind,
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    *,
    settings: CalibrationSettings | None = None,
    link: str | Link = "auto",
    samples: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> _Kind:
    """Choose precision and temperature, or a regression's noise, on held-out data.

    A linearised posterior gets both in one pass. One that predicts by draws gets the
    temperature that suits the mixture of its draws.

    Args:
        posterior: The posterior.
        model: The model it belongs to, or its `Problem`. It is left as it was.
        batches: Labelled batches that neither trained the model nor will test it.
        settings: What to choose, and from what; for a linearised posterior.
        link: How the logits become probabilities; for a linearised posterior. It is
            remembered: predictions take the same unless they are told another.
        samples: How many draws; for a posterior that predicts by draws.
        seed: Seed of the draws, of weights or of the link's logits: predict with the same.
        progress: Show a progress bar.

    Returns:
        The posterior with the chosen values; `calibration` records how they were chosen.

    Raises:
        ArgumentError: If an argument does not suit this kind of posterior.
    """
    if not isinstance(posterior, Posterior):
        raise ArgumentError(
            f"posterior must be a smidgen posterior, got {type(posterior).__name__}. The "
            "order is (posterior, model, batches)."
        )
    problem = as_problem(model).with_likelihood(posterior.likelihood)
    batches = as_batches(batches)
    refuse_shard(batches)
    tracked = track(batches, "calibrating", show=progress)
    named = link if isinstance(link, Link) else Link(link)
    if not posterior.linearised:
        if settings is not None:
            raise ArgumentError(
                f"settings are for posteriors with a prior precision, and a "
                f"{posterior.method} posterior has none. Leave them out."
            )
        named.refuse_for_draws()
        count = posterior.samples if samples is None else samples
        # Around the loader too, which may draw from torch's own generator.
        with preserve_random_state(problem.model):
            outputs = held_out(problem, posterior, tracked, samples=count, seed=seed)
        calibrated = calibrate_from_outputs(posterior, outputs)
        # Of the point alone there are two outputs, and no draw.
        calibration = replace(
            cast(SampleCalibration, calibrated.calibration), samples=count
        )
        return replace(calibrated, calibration=calibration)
    if samples is not None:
        raise ArgumentError(
            f"samples must be left out for a {posterior.method} posterior, which predicts "
            f"without draws, got {samples}. Leave them out."
        )
    precise = calibrate_precision(
        cast(LaplacePosterior, posterior),
        problem,
        tracked,
        fill_settings(settings, CalibrationSettings),
        named,
        seed,
    )
    return cast(_Kind, precise)
