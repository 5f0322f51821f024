"""A ramping study from one pass over each data set (the paper's figures 2–6, Table 2).

How much must be stochastic, and what? One curvature pass gives the factors of every
percentage, and one validation pass the variance table, from which every scheme, size and
precision is scored. Each scheme's best point by validation NLL is then reported on the test
data, in one pass for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from smidgen.curvature.kronecker import Approximation
from smidgen.curvature.output_layers import peek
from smidgen.errors import ArgumentError
from smidgen.fit.calibration.precision import checked_grid
from smidgen.outputs.links import Link
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.variance_table import variance_table
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.progress import track
from smidgen.runtime.record import Record
from smidgen.types import Batch
from smidgen.weights.affine import require_coverage
from smidgen.weights.subset import Subset
from smidgen.workflows.ramp.levels import find_last_layer, fit_levels, list_levels
from smidgen.workflows.ramp.points import (
    LapClock,
    best_scheme,
    choose_points,
    make_record,
    require_classifier,
    require_schemes,
)
from smidgen.workflows.ramp.schemes import SCHEMES, Level, Scheme, label_block
from smidgen.workflows.ramp.scorer import LaplacePoint, Scorer

PERCENTS = (1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 40, 50, 75, 100)
PRECISIONS = tuple(10 ** (k / 2) for k in range(-8, 13))
"""From 1e-4 to 1e6, two per decade."""


@dataclass(frozen=True)
class RampSettings:
    """What a ramping study tries.

    `most_stochastic` is the largest fraction of the weights among which a scheme's best
    point is chosen, since the paper's table stops at about a tenth; "full" is exempt. A
    scheme without so small a point reports its best of all, which can never be the best of
    the study.
    """

    schemes: tuple[Scheme, ...] = SCHEMES
    percents: tuple[float, ...] = PERCENTS
    precisions: tuple[float, ...] = PRECISIONS
    repeats: int = 5
    most_stochastic: float = 0.1
    approximation: Approximation = "reduce"
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Ramp:
    """All points, the one chosen for each scheme, and its posterior."""

    points: tuple[LaplacePoint, ...]
    chosen: Mapping[str, LaplacePoint]
    posteriors: Mapping[str, LaplacePosterior]
    record: Record

    @property
    def best(self) -> str:
        """The scheme with the lowest validation NLL among those small enough."""
        return str(self.record.results["ramp"]["best"])


def ramp(
    model: nn.Module | Problem,
    train: Iterable[Batch],
    validation: Iterable[Batch],
    test: Iterable[Batch],
    settings: RampSettings | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Ramp:
    """Run a ramping study of a trained classifier.

    Args:
        model: The trained model, or its `Problem`. It is not changed.
        train: Training batches, read once.
        validation: Labelled batches that choose, read once.
        test: Labelled batches that only report, read once.
        settings: What to try.
        config: What else to note in the record.
        progress: Show progress bars.

    Returns:
        The points, the chosen posteriors and a record of it all.
    """
    settings = settings or RampSettings()
    _check_settings(settings)
    clock = LapClock()
    problem = as_problem(model)
    # Around the loader too, which may draw from torch's own generator.
    with preserve_random_state(problem.model):
        first_held_out, validation = peek(validation)
        last = find_last_layer(problem, first_held_out, settings.schemes)
    percents = sorted({float(percent) for percent in settings.percents})
    posteriors = fit_levels(
        problem,
        train,
        first_held_out,
        list_levels(problem.model, settings.schemes, percents, last),
        approximation=settings.approximation,
        progress=progress,
    )
    clock.lap("curvature pass and decompositions")
    scorer = _read_table(problem, validation, posteriors, last, settings, progress)
    clock.lap("validation pass")
    points = scorer.score_all(
        settings.schemes,
        percents,
        repeats=settings.repeats,
        seed=settings.seed,
        progress=progress,
    )
    chosen = choose_points(points, settings.schemes, settings.most_stochastic)
    clock.lap("choosing")
    methods, targets = scorer.predict(chosen, test, progress)
    clock.lap("test pass")
    seen = next(iter(posteriors.values())).num_data
    sizes = {"train": seen, "validation": len(scorer.objective), "test": len(targets)}
    small = [s for s, p in chosen.items() if p.fraction <= settings.most_stochastic]
    record = make_record(
        methods,
        targets,
        points,
        chosen,
        best=best_scheme(chosen, small),
        estimate=scorer.estimate,
        layers=scorer.layers,
        norms=scorer.norms,
        rest={"data": sizes, "seconds": clock.laps},
        config={**(config or {}), **asdict(settings)},
        seed=settings.seed,
    )
    assembled = {scheme: scorer.assemble(point) for scheme, point in chosen.items()}
    return Ramp(tuple(points), chosen, assembled, record)


def _read_table(
    problem: Problem,
    validation: Iterable[Batch],
    posteriors: Mapping[Level, LaplacePosterior],
    last: Subset | None,
    settings: RampSettings,
    progress: bool,
) -> Scorer:
    """Make the variance table of the validation data, and what scores points from it."""
    likelihood = next(iter(posteriors.values())).likelihood
    require_classifier(likelihood)
    settled = problem.with_likelihood(likelihood)
    link = likelihood.settle_link(Link(), tell=True)
    layers = require_coverage(problem.model).layers
    names = [layer.name for layer in layers if last and layer.weight in last.parts]
    table = variance_table(
        settled,
        track(validation, "validating", show=progress),
        posteriors,
        checked_grid(settings.precisions),
        link.name,
        label=lambda level, name: label_block(level, name, names),
        top=link.followed,
    )
    return Scorer(settled, posteriors, table, link, names)


def _check_settings(settings: RampSettings) -> None:
    require_schemes(settings.schemes, SCHEMES)
    if settings.repeats < 1:
        raise ArgumentError(f"repeats must be 1 or more, got {settings.repeats}.")
