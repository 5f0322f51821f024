"""A ramping study from one pass over each data set (the paper's figures 2–6, Table 2).

How much must be stochastic, and what? One curvature pass gives the factors of every
percentage, one validation pass the variance table, from which every scheme, size and
precision is scored. Each scheme's best point by validation NLL is reported on the test
data, in one pass for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from smidgen import fit, select
from smidgen.curvature.kronecker import Approximation
from smidgen.errors import ArgumentError
from smidgen.fit.calibration.precision import checked_grid
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.predictive import CategoricalPredictive
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.variance_table import variance_table
from smidgen.runtime.progress import track
from smidgen.runtime.record import Record
from smidgen.types import Batch
from smidgen.weights.subset import Subset
from smidgen.workflows.comparison import Method, compare
from smidgen.workflows.ramp.points import Point, Work, curves, scored
from smidgen.workflows.ramp.schemes import (
    SCHEMES,
    WHOLE,
    BlockKey,
    Candidate,
    Scheme,
    allocations,
    candidates,
)

PERCENTS = (1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 40, 50, 75, 100)
PRECISIONS = tuple(10 ** (k / 2) for k in range(-8, 13))
"""From 1e-4 to 1e6, two to a decade."""


@dataclass(frozen=True)
class RampSettings:
    """What a ramping study tries.

    `most_stochastic` is the largest share of weights among which a scheme's best point is
    chosen, "full" apart, as the paper's table stops at about a tenth; a scheme without so
    small a point shows its best of all, which never counts as the study's best.
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
    """All points, each scheme's chosen one, and the posteriors those are."""

    points: tuple[Point, ...]
    chosen: Mapping[Scheme, Point]
    posteriors: Mapping[Scheme, LaplacePosterior]
    record: Record

    @property
    def best(self) -> Scheme:
        """The scheme of the lowest validation NLL among those small enough."""
        found: Scheme = self.record.results["ramp"]["best"]
        return found


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
        model: The trained model, or its `Problem`; it is left as it was.
        train: Training batches, read once.
        validation: Labelled batches that choose, read once.
        test: Labelled batches that only report, read once.
        settings: What to try.
        config: What else to note in the record.
        progress: Draw progress bars; in a log, a line a minute.

    Returns:
        The points, the chosen posteriors and a record of it all.
    """
    settings = settings or RampSettings()
    clock = _Clock()
    problem = as_problem(model)
    subsets = _subsets(problem.model, settings)
    posteriors = fit.laplace_many(
        problem,
        train,
        subsets,
        approximation=settings.approximation,
        progress=progress,
    )
    clock.lap("curvature pass and decompositions")
    first = _classifier(posteriors)
    problem = problem.with_likelihood(first.likelihood)
    link = first.likelihood.resolved_link("auto")
    grid = checked_grid(settings.precisions)
    table = variance_table(
        problem, track(validation, "validating", show=progress), posteriors, grid, link
    )
    clock.lap("validation pass")
    work = Work(problem, posteriors, table, link)
    points = _scored_points(work, settings, progress)
    chosen = _chosen(points, settings)
    clock.lap("choosing")
    methods, targets = _reported(work, chosen, test, progress)
    clock.lap("test pass")
    results = {
        **compare(methods, targets),
        "ramp": {
            **curves(work, points, chosen),
            "best": _best(chosen, settings.most_stochastic),
        },
        "norms": work.listed_norms(),
        "data": {
            "train": first.num_data,
            "validation": len(table.targets),
            "test": len(targets),
        },
        "seconds": clock.laps,
    }
    noted = {**(config or {}), **asdict(settings)}
    record = Record("ramp", noted, results, seed=settings.seed)
    return Ramp(
        tuple(points),
        chosen,
        {scheme: work.posterior(point) for scheme, point in chosen.items()},
        record,
    )


def _classifier(posteriors: Mapping[float, LaplacePosterior]) -> LaplacePosterior:
    """Any of the posteriors, if they are of a classifier."""
    first = next(iter(posteriors.values()))
    if not isinstance(first.likelihood, Categorical):
        raise ArgumentError(
            f"a ramping study is for classifiers, got {first.likelihood}. Fit and tune "
            "posteriors one by one for other likelihoods."
        )
    return first


class _Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self.last = now - self.last, now


def _subsets(model: nn.Module, settings: RampSettings) -> dict[float, Subset]:
    """What is fitted: the percentages, and whole layers where a scheme needs them."""
    unknown = [each for each in settings.schemes if each not in SCHEMES]
    if unknown or not settings.schemes:
        raise ArgumentError(
            f"schemes must be some of {', '.join(SCHEMES)}, got {unknown or 'none'}."
        )
    if settings.repeats < 1:
        raise ArgumentError(f"repeats must be 1 or more, got {settings.repeats}.")
    found = {p: select.sparse_kfac(model, percent=p) for p in _percents(settings)}
    whole = set(settings.schemes) - {"sparse-kfac", "best-budget"}
    if whole == {"last-layer"}:
        found.setdefault(WHOLE, select.last_layer(model))
    elif whole:
        found.setdefault(WHOLE, select.sparse_kfac(model, percent=WHOLE))
    return found


def _percents(settings: RampSettings) -> list[float]:
    return sorted({float(each) for each in settings.percents})


def _all_maps(work: Work, percent: float) -> tuple[BlockKey, ...]:
    return tuple((percent, each.name) for each in work.layers)


def _scored_points(work: Work, settings: RampSettings, progress: bool) -> list[Point]:
    percents = _percents(settings)
    generator = torch.Generator().manual_seed(settings.seed)
    listed = candidates(
        settings.schemes,
        work.layers,
        work.norms,
        percents,
        repeats=settings.repeats,
        generator=generator,
    )
    points = [scored(work, each) for each in track(listed, "choosing", show=progress)]
    if "best-budget" in settings.schemes:
        uniform = [Candidate("sparse-kfac", p, _all_maps(work, p)) for p in percents]
        best = min((scored(work, each) for each in uniform), key=lambda each: each.nll)
        budgets = [sum(work.floats[s] for s in each.shares) for each in uniform]
        place = int((work.table.precisions - best.precision).abs().argmin())
        points += [
            scored(work, each)
            for each in allocations(
                work.table,
                work.objective,
                {s: cost for s, cost in work.floats.items() if s[0] in percents},
                budgets,
                precision=place,
                temperature=best.temperature,
            )
        ]
    return points


def _chosen(points: Sequence[Point], settings: RampSettings) -> dict[Scheme, Point]:
    """Each scheme's best point by validation NLL, among those small enough.

    Of modules drawn at random the number is chosen by the mean over the repeats, and the
    repeat whose NLL is their median stands for it.

    Returns:
        The chosen point of each scheme.
    """
    chosen: dict[Scheme, Point] = {}
    for scheme in settings.schemes:
        own = [each for each in points if each.scheme == scheme]
        small = [each for each in own if each.fraction <= settings.most_stochastic]
        own = own if scheme == "full" or not small else small
        if not own:
            continue
        if scheme != "random":
            chosen[scheme] = min(own, key=lambda each: each.nll)
            continue
        by_count: dict[float, list[Point]] = {}
        for each in own:
            by_count.setdefault(each.level, []).append(each)
        level = min(
            by_count, key=lambda k: sum(p.nll for p in by_count[k]) / len(by_count[k])
        )
        ranked = sorted(by_count[level], key=lambda each: each.nll)
        chosen[scheme] = ranked[len(ranked) // 2]
    return chosen


def _best(chosen: Mapping[Scheme, Point], most: float) -> Scheme:
    """Which scheme's chosen point is best by validation NLL, of those small enough."""
    small = [scheme for scheme, point in chosen.items() if point.fraction <= most]
    return min(small or chosen, key=lambda scheme: chosen[scheme].nll)


def _reported(
    work: Work, chosen: Mapping[Scheme, Point], test: Iterable[Batch], progress: bool
) -> tuple[list[Method], Tensor]:
    """Predict the test data with every chosen point, in one pass for all."""
    needed = {share for point in chosen.values() for share in point.shares}
    grid = torch.tensor(sorted({point.precision for point in chosen.values()})).double()

    def wanted(level: float, name: str) -> Hashable | None:
        share = (level, name)
        return share if share in needed else None

    table = variance_table(
        work.problem,
        track(test, "testing", show=progress),
        work.posteriors,
        grid,
        work.link,
        label=wanted,
    )
    base = float(work.objective.best(None)[0])
    from_logits = CategoricalPredictive.from_logits
    methods = [
        Method("map", from_logits(table.outputs)),
        Method(
            "temperature",
            from_logits(table.outputs, base),
            settings={"temperature": base},
        ),
    ]
    edges = work.table.precisions[[0, -1]].tolist()
    for scheme, point in chosen.items():
        place = int((grid - point.precision).abs().argmin())
        total = table.total(point.shares)[place]
        methods.append(
            Method(
                scheme,
                work.predictive(table.outputs, total, point.temperature),
                floats=point.floats,
                settings={
                    "precision": point.precision,
                    "temperature": point.temperature,
                    "precision_at_edge": point.precision in edges,
                    "level": point.level,
                    "weights": point.weights,
                    "fraction": point.fraction,
                    "validation_nll": point.nll,
                },
            )
        )
    return methods, table.targets
