"""A ramping study from one pass over each data set (the paper's figures 2–6, Table 2).

How much must be stochastic, and what? One curvature pass gives the factors of every
percentage, and one validation pass the variance table, from which every scheme, size and
precision is scored. Each scheme's best point by validation NLL is then reported on the test
data, in one pass for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from smidgen import fit, select
from smidgen.curvature.kronecker import Approximation
from smidgen.curvature.output_layers import peek
from smidgen.errors import ArgumentError
from smidgen.fit.calibration.objective import Objective
from smidgen.fit.calibration.precision import checked_grid, score_precisions
from smidgen.outputs.predictive import Predictive
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.variance_table import VarianceTable, variance_table
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.progress import track
from smidgen.runtime.record import Record
from smidgen.types import Batch
from smidgen.weights.affine import require_coverage
from smidgen.weights.origin import Origin
from smidgen.weights.subset import Subset
from smidgen.workflows.method import Method, predict_from_outputs
from smidgen.workflows.ramp.points import (
    Point,
    PointEstimate,
    best_scheme,
    choose_points,
    layer_norms,
    make_record,
    require_classifier,
    require_schemes,
    score_calibration,
)
from smidgen.workflows.ramp.schemes import (
    SCHEMES,
    WHOLE,
    BlockKey,
    Scheme,
    UnscoredPoint,
    allocate,
    list_points,
)

PERCENTS = (1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 40, 50, 75, 100)
PRECISIONS = tuple(10 ** (k / 2) for k in range(-8, 13))
"""From 1e-4 to 1e6, two per decade."""
# The unit of a scheme's level, where it is not the number of layers.
_LEVELS = {"sparse-kfac": "percent", "best-budget": "floats"}


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


@dataclass(frozen=True, kw_only=True)
class LaplacePoint(Point):
    """One size of one scheme, with the precision chosen for it and its blocks."""

    precision: float
    blocks: tuple[BlockKey, ...] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """List the point's values; only an allocation's blocks do not follow from them."""
        values = asdict(self)
        blocks = values.pop("blocks")
        return {**values, "shares": blocks} if self.scheme == "best-budget" else values


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
    clock = _Clock()
    problem = as_problem(model)
    last = None
    if "last-layer" in settings.schemes:
        # Around the loader too, which may draw from torch's own generator.
        with preserve_random_state(problem.model):
            first_held_out, validation = peek(validation)
            last = select.last_layer(problem, [first_held_out])
    posteriors = fit.laplace_many(
        problem,
        train,
        _choose_subsets(problem.model, settings, last),
        progress=progress,
        settings=fit.LaplaceSettings(approximation=settings.approximation),
    )
    clock.lap("curvature pass and decompositions")
    first = next(iter(posteriors.values()))
    require_classifier(first.likelihood)
    problem = problem.with_likelihood(first.likelihood)
    link = first.likelihood.resolve_link("auto")
    grid = checked_grid(settings.precisions)
    batches = track(validation, "validating", show=progress)
    table = variance_table(problem, batches, posteriors, grid, link)
    clock.lap("validation pass")
    scorer = _Scorer(problem, posteriors, table, link, last)
    points = scorer.score_all(settings, progress)
    chosen = choose_points(points, settings.schemes, settings.most_stochastic)
    clock.lap("choosing")
    methods, targets = scorer.predict(chosen, test, progress)
    clock.lap("test pass")
    sizes = {"train": first.num_data, "validation": len(table.targets)}
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
        rest={"data": {**sizes, "test": len(targets)}, "seconds": clock.laps},
        config={**(config or {}), **asdict(settings)},
        seed=settings.seed,
    )
    assembled = {scheme: scorer.assemble(point) for scheme, point in chosen.items()}
    return Ramp(tuple(points), chosen, assembled, record)


def _check_settings(settings: RampSettings) -> None:
    require_schemes(settings.schemes, SCHEMES)
    if settings.repeats < 1:
        raise ArgumentError(f"repeats must be 1 or more, got {settings.repeats}.")


class _Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self.last = now - self.last, now


def _choose_subsets(
    model: nn.Module, settings: RampSettings, last: Subset | None
) -> dict[float, Subset]:
    """Choose what is fitted: the percentages, and whole layers where a scheme needs them."""
    subsets = {p: select.sparse_kfac(model, percent=p) for p in _percents(settings)}
    whole = set(settings.schemes) - {"sparse-kfac", "best-budget"}
    if last is not None and whole == {"last-layer"}:
        subsets.setdefault(WHOLE, last)
    elif whole:
        subsets.setdefault(WHOLE, select.sparse_kfac(model, percent=WHOLE))
    return subsets


def _percents(settings: RampSettings) -> list[float]:
    return sorted({float(percent) for percent in settings.percents})


class _Scorer:
    """Scores points from the nested posteriors and the variance table."""

    def __init__(
        self,
        problem: SettledProblem,
        posteriors: Mapping[float, LaplacePosterior],
        table: VarianceTable,
        link: str,
        last: Subset | None,
    ) -> None:
        self.problem, self.posteriors = problem, posteriors
        self.table, self.link = table, link
        fitted = {name for p in posteriors.values() for name in p.operators}
        layers = require_coverage(problem.model).layers
        self.layers = [layer for layer in layers if layer.name in fitted]
        self.last = [x.name for x in self.layers if last and x.weight in last.parts]
        self.norms = layer_norms(problem.model)
        self.likelihood = next(iter(posteriors.values())).likelihood
        self.objective = Objective(self.likelihood, table.outputs, table.targets, link)
        operators = {
            (percent, name): operator
            for percent, posterior in posteriors.items()
            for name, operator in posterior.operators.items()
        }
        self.floats = {key: operator.floats for key, operator in operators.items()}
        self.weights = {key: op.values.numel() for key, op in operators.items()}

    @property
    def estimate(self) -> PointEstimate:
        """The point estimate on validation data."""
        temperature, scaled = (float(value) for value in self.objective.best(None))
        return PointEstimate.from_outputs(
            self.table.outputs,
            self.table.targets,
            nll=float(self.objective.nll(None)),
            temperature=temperature,
            scaled_nll=scaled,
        )

    def score_all(self, settings: RampSettings, progress: bool) -> list[LaplacePoint]:
        """Score the points of all schemes."""
        percents = _percents(settings)
        candidates = list_points(
            settings.schemes,
            self.layers,
            self.norms,
            percents,
            last=self.last,
            repeats=settings.repeats,
            seed=settings.seed,
        )
        points = [self.score(c) for c in track(candidates, "choosing", show=progress)]
        if "best-budget" in settings.schemes:
            points += [self.score(c) for c in self._allocate(percents)]
        return points

    def _allocate(self, percents: list[float]) -> list[UnscoredPoint]:
        """Allocate the budgets of the uniform percentages, under the best one's scales."""
        names = [layer.name for layer in self.layers]
        uniform = [
            UnscoredPoint("sparse-kfac", p, tuple((p, name) for name in names))
            for p in percents
        ]
        best = min((self.score(c) for c in uniform), key=lambda point: point.nll)
        return allocate(
            self.table,
            self.objective,
            {key: cost for key, cost in self.floats.items() if key[0] in percents},
            [sum(self.floats[key] for key in c.blocks) for c in uniform],
            precision=int((self.table.precisions - best.precision).abs().argmin()),
            temperature=best.temperature,
        )

    def score(self, candidate: UnscoredPoint) -> LaplacePoint:
        """Choose precision and temperature together on validation data."""
        covariance = self.table.total(candidate.blocks)
        temperatures, nlls = self.objective.best(covariance)
        best = int(nlls.argmin())
        temperature = float(temperatures[best])
        predictive = self._predictive(self.table.outputs, covariance[best], temperature)
        weights = sum(self.weights[key] for key in candidate.blocks)
        total = sum(m.outputs * m.inputs + m.outputs * bool(m.bias) for m in self.layers)
        return LaplacePoint(
            scheme=candidate.scheme,
            level=candidate.level,
            repeat=candidate.repeat,
            floats=sum(self.floats[key] for key in candidate.blocks),
            weights=weights,
            fraction=weights / total,
            precision=float(self.table.precisions[best]),
            temperature=temperature,
            nll=float(nlls[best]),
            **score_calibration(predictive, self.table.targets),
            blocks=candidate.blocks,
        )

    def _predictive(
        self, outputs: Tensor, covariance: Tensor, temperature: float
    ) -> Predictive:
        """Turn outputs (N, C) and their covariance (N, K, K) into probabilities."""
        return self.likelihood.predictive(
            outputs,
            covariance.double(),
            link=self.link,
            temperature=temperature,
            normals=self.objective.normals,
        )

    def assemble(self, point: LaplacePoint) -> LaplacePosterior:
        """Put a point's blocks together: equal to fitting and calibrating it alone."""
        shapes = {layer.name: layer.shapes for layer in self.layers}
        parts = {
            name: self.posteriors[percent].subset.parts[name]
            for percent, layer in point.blocks
            for name in shapes[layer]
            if name in self.posteriors[percent].subset.parts
        }
        base = self.posteriors[point.blocks[0][0]]
        origin = Origin(point.scheme, {_LEVELS.get(point.scheme, "count"): point.level})
        curve = score_precisions(self.objective, self.table, point.blocks)
        edges = (curve.precisions[0], curve.precisions[-1])
        at_edge = len(curve.precisions) > 1 and point.precision in edges
        return replace(
            base,
            subset=Subset(base.subset.universe, parts, origin),
            operators={n: self.posteriors[p].operators[n] for p, n in point.blocks},
            precision=point.precision,
            temperature=point.temperature,
            calibration=replace(curve, chosen_nll=point.nll, at_edge=at_edge),
        )

    def predict(
        self, chosen: Mapping[str, LaplacePoint], test: Iterable[Batch], progress: bool
    ) -> tuple[list[Method], Tensor]:
        """Predict the test data with every chosen point, in one pass for all."""
        needed = {key for point in chosen.values() for key in point.blocks}
        precisions = sorted({point.precision for point in chosen.values()})
        grid = torch.tensor(precisions).double()

        def label(percent: float, name: str) -> Hashable | None:
            return (percent, name) if (percent, name) in needed else None

        batches = track(test, "testing", show=progress)
        table = variance_table(
            self.problem, batches, self.posteriors, grid, self.link, label=label
        )
        scale = float(self.objective.best(None)[0])
        methods = [
            Method("map", predict_from_outputs(None, table.outputs)),
            Method(
                "temperature",
                predict_from_outputs(None, table.outputs, scale),
                settings={"temperature": scale},
            ),
        ]
        edges = self.table.precisions[[0, -1]].tolist()
        for scheme, point in chosen.items():
            index = int((grid - point.precision).abs().argmin())
            covariance = table.total(point.blocks)[index]
            predictive = self._predictive(table.outputs, covariance, point.temperature)
            settings = {
                "precision": point.precision,
                "temperature": point.temperature,
                "precision_at_edge": point.precision in edges,
                **point.settings(),
            }
            methods.append(
                Method(scheme, predictive, floats=point.floats, settings=settings)
            )
        return methods, table.targets
