"""Points of a ramping study, scored and put together from the variance table alone."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor

from smidgen.fit.calibration.objective import Objective
from smidgen.fit.calibration.precision import (
    ScaledPrecisions,
    score_precisions,
    search_precisions,
)
from smidgen.outputs.links import Link
from smidgen.outputs.predictive import Predictive
from smidgen.outputs.problem import SettledProblem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.variance_table import VarianceTable, variance_table
from smidgen.runtime.progress import track
from smidgen.types import Batch
from smidgen.weights.affine import require_coverage
from smidgen.weights.origin import Origin, combine_origins
from smidgen.weights.subset import Subset
from smidgen.workflows.method import Method, predict_from_outputs
from smidgen.workflows.ramp.points import (
    Point,
    PointEstimate,
    layer_norms,
    score_calibration,
)
from smidgen.workflows.ramp.schemes import (
    CURVED,
    ISOTROPIC,
    BlockKey,
    Level,
    UnscoredPoint,
    allocate,
    label_block,
    list_points,
    take_layers,
)

# The unit of a scheme's level, where it is not the number of layers.
_LEVELS = {"sparse-kfac": "percent", "isotropic": "percent", "best-budget": "floats"}
# Who chose the weights, where that is not the scheme itself.
_SELECTORS = {"isotropic": "sparse-kfac"}


@dataclass(frozen=True, kw_only=True)
class LaplacePoint(Point):
    """One size of one scheme, with the precision chosen for it and its blocks.

    `body_precision` is that of the layers without curvature beside others that have one.
    """

    precision: float
    body_precision: float | None = None
    blocks: tuple[BlockKey, ...] = field(repr=False)

    @property
    def precisions(self) -> dict[str, float]:
        """The precision of the blocks of each structure."""
        body = self.precision if self.body_precision is None else self.body_precision
        return {CURVED: self.precision, ISOTROPIC: body}

    def to_dict(self) -> dict[str, Any]:
        """List the point's values; only an allocation's blocks do not follow from them."""
        values = asdict(self)
        del values["blocks"]
        if self.body_precision is None:
            del values["body_precision"]
        if self.scheme != "best-budget":
            return values
        return {**values, "shares": [(level.percent, name) for level, name in self.blocks]}


class Scorer:
    """Scores points from the nested posteriors and the variance table."""

    def __init__(
        self,
        problem: SettledProblem,
        posteriors: Mapping[Level, LaplacePosterior],
        table: VarianceTable,
        link: Link,
        last: Sequence[str],
    ) -> None:
        self.problem, self.posteriors = problem, posteriors
        self.table, self.link = table, link
        fitted = {name for p in posteriors.values() for name in p.operators}
        layers = require_coverage(problem.model).layers
        self.layers = [layer for layer in layers if layer.name in fitted]
        self.last = [name for name in last if name in fitted]
        self.norms = layer_norms(problem.model)
        self.likelihood = next(iter(posteriors.values())).likelihood
        self.objective = Objective(
            self.likelihood, table.outputs, table.targets, link.name, top=link.followed
        )
        operators = {
            (level, name): operator
            for level, posterior in posteriors.items()
            for name, operator in posterior.operators.items()
        }
        self.floats = {key: operator.floats for key, operator in operators.items()}
        self.weights = {key: op.size for key, op in operators.items()}

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

    def score_all(
        self,
        schemes: Sequence[str],
        percents: Sequence[float],
        *,
        repeats: int,
        seed: int,
        progress: bool,
    ) -> list[LaplacePoint]:
        """Score the points of all schemes."""
        candidates = list_points(
            schemes,
            self.layers,
            self.norms,
            percents,
            last=self.last,
            repeats=repeats,
            seed=seed,
        )
        points = [self.score(c) for c in track(candidates, "choosing", show=progress)]
        if "best-budget" in schemes:
            points += [self.score(c) for c in self._allocate(percents)]
        return points

    def _allocate(self, percents: Sequence[float]) -> list[UnscoredPoint]:
        """Allocate the budgets of the uniform percentages, under the best one's scales."""
        names = [layer.name for layer in self.layers]
        levels = [Level(percent) for percent in percents]
        uniform = [
            UnscoredPoint("sparse-kfac", level.percent, take_layers(level, names))
            for level in levels
        ]
        best = min((self.score(c) for c in uniform), key=lambda point: point.nll)
        return allocate(
            self.table,
            self.objective,
            {key: cost for key, cost in self.floats.items() if key[0] in levels},
            [sum(self.floats[key] for key in c.blocks) for c in uniform],
            precision=int((self.table.precisions - best.precision).abs().argmin()),
            temperature=best.temperature,
        )

    def score(self, candidate: UnscoredPoint) -> LaplacePoint:
        """Choose precision and temperature together on validation data."""
        sums = self._sum_up(self.table, candidate.blocks)
        choice = self._choose(sums)
        covariance = _pick(sums, self.table.precisions, choice.precisions)
        predictive = self._predictive(self.table.outputs, covariance, choice.scale)
        weights = sum(self.weights[key] for key in candidate.blocks)
        total = next(iter(self.posteriors.values())).subset.total
        taus = dict(choice.precisions)
        body = taus.pop(ISOTROPIC) if len(taus) > 1 else None
        (precision,) = taus.values()
        return LaplacePoint(
            scheme=candidate.scheme,
            level=candidate.level,
            repeat=candidate.repeat,
            floats=sum(self.floats[key] for key in candidate.blocks),
            weights=weights,
            fraction=weights / total,
            precision=precision,
            body_precision=body,
            temperature=choice.scale,
            nll=choice.nll,
            **score_calibration(predictive, self.table.targets),
            blocks=candidate.blocks,
        )

    def _labels(self, blocks: Iterable[BlockKey]) -> list[BlockKey]:
        """List the sums of the table that some blocks are in, each once."""
        return list(dict.fromkeys(label_block(*key, self.last) for key in blocks))

    def _sum_up(
        self, table: VarianceTable, blocks: Iterable[BlockKey]
    ) -> dict[Hashable, Tensor]:
        """Sum the covariances of some blocks by structure, (P, N, K, K) each."""
        by_structure: dict[Hashable, list[BlockKey]] = {}
        for label in self._labels(blocks):
            by_structure.setdefault(label[0].structure, []).append(label)
        return {name: table.total(labels) for name, labels in by_structure.items()}

    def _choose(self, sums: Mapping[Hashable, Tensor]) -> ScaledPrecisions:
        """Choose a precision for each structure, and the temperature."""
        if len(sums) > 1:
            # As `smidgen.calibrate` chooses those of several groups: a coarse grid of pairs,
            # then steps of one or both from its best places, each at its best temperature.
            pairs = replace(self.table, covariance=sums)
            curve = score_precisions(self.objective, pairs, sums)
            return search_precisions(self.objective, pairs, curve, refine=False)
        ((structure, covariance),) = sums.items()
        temperatures, nlls = self.objective.best(covariance)
        best = int((nlls + self.objective.penalty(temperatures)).argmin())
        precision = float(self.table.precisions[best])
        return ScaledPrecisions(
            {structure: precision}, float(temperatures[best]), float(nlls[best])
        )

    def _predictive(
        self, outputs: Tensor, covariance: Tensor, temperature: float
    ) -> Predictive:
        """Turn outputs (N, C) and their covariance (N, K, K) into probabilities."""
        return self.likelihood.predictive(
            outputs,
            covariance.double(),
            link=self.link.name,
            temperature=temperature,
            normals=self.objective.normals,
            top=self.link.followed,
        )

    def assemble(self, point: LaplacePoint) -> LaplacePosterior:
        """Put a point's blocks together: equal to fitting and calibrating it alone."""
        by_structure: dict[str, list[BlockKey]] = {}
        for key in point.blocks:
            by_structure.setdefault(key[0].structure, []).append(key)
        parts = [
            self._gather(
                blocks, self._origin(point, structure), point.precisions[structure]
            )
            for structure, blocks in by_structure.items()
        ]
        curve = score_precisions(self.objective, self.table, self._labels(point.blocks))
        return replace(
            reduce(or_, parts),
            temperature=point.temperature,
            calibration=replace(
                curve, chosen_nll=point.nll, at_edge=self._is_at_edge(point)
            ),
        )

    def _origin(self, point: LaplacePoint, structure: str) -> Origin | None:
        """Say who chose a point's weights of one structure."""
        if point.body_precision is None:
            setting = {_LEVELS.get(point.scheme, "count"): point.level}
            return Origin(_SELECTORS.get(point.scheme, point.scheme), setting)
        head = Origin("last-layer", {"count": len(self.last)})
        return head if structure == CURVED else combine_origins("complement", head)

    def _gather(
        self, blocks: Sequence[BlockKey], origin: Origin | None, precision: float
    ) -> LaplacePosterior:
        """Gather blocks of one structure into a posterior."""
        shapes = {layer.name: layer.shapes for layer in self.layers}
        parts = {
            name: self.posteriors[level].subset.parts[name]
            for level, layer in blocks
            for name in shapes[layer]
            if name in self.posteriors[level].subset.parts
        }
        base = self.posteriors[blocks[0][0]]
        return replace(
            base,
            subset=Subset(base.subset.universe, parts, origin),
            operators={n: self.posteriors[level].operators[n] for level, n in blocks},
            precision=precision,
        )

    def _is_at_edge(self, point: LaplacePoint) -> bool:
        """Whether a precision of the point is the first or the last of several tried."""
        grid = self.table.precisions.tolist()
        ends = {grid[0], grid[-1]} if len(grid) > 1 else set()
        return not ends.isdisjoint(_used_precisions(point))

    def predict(
        self, chosen: Mapping[str, LaplacePoint], test: Iterable[Batch], progress: bool
    ) -> tuple[list[Method], Tensor]:
        """Predict the test data with every chosen point, in one pass for all."""
        needed = {label for p in chosen.values() for label in self._labels(p.blocks)}
        precisions = {tau for point in chosen.values() for tau in _used_precisions(point)}
        grid = torch.tensor(sorted(precisions)).double()

        def label(level: Level, name: str) -> BlockKey | None:
            joined = label_block(level, name, self.last)
            return joined if joined in needed else None

        batches = track(test, "testing", show=progress)
        table = variance_table(
            self.problem,
            batches,
            self.posteriors,
            grid,
            self.link.name,
            label=label,
            top=self.link.followed,
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
        for scheme, point in chosen.items():
            sums = self._sum_up(table, point.blocks)
            covariance = _pick(sums, grid, point.precisions)
            predictive = self._predictive(table.outputs, covariance, point.temperature)
            methods.append(
                Method(
                    scheme, predictive, floats=point.floats, settings=self._settings(point)
                )
            )
        return methods, table.targets

    def _settings(self, point: LaplacePoint) -> dict[str, Any]:
        """List what the row of a chosen point says of it."""
        body = point.body_precision
        return {
            "precision": point.precision,
            **({} if body is None else {"body_precision": body}),
            "temperature": point.temperature,
            "precision_at_edge": self._is_at_edge(point),
            **point.settings(),
        }


def _used_precisions(point: LaplacePoint) -> set[float]:
    return {point.precisions[level.structure] for level, _ in point.blocks}


def _pick(
    sums: Mapping[Hashable, Tensor], grid: Tensor, precisions: Mapping[Any, float]
) -> Tensor:
    """Add the covariances of all structures up, each at its own precision: (N, K, K)."""
    places = {name: int((grid - precisions[name]).abs().argmin()) for name in sums}
    return torch.stack([sums[name][place] for name, place in places.items()]).sum(0)
