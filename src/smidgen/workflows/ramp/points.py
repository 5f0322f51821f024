"""Points of a ramping study, scored from the variance table of validation data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from smidgen import evaluate
from smidgen.fit.calibration.objective import Objective
from smidgen.fit.calibration.precision import score_precisions
from smidgen.outputs.predictive import CategoricalPredictive
from smidgen.outputs.problem import SettledProblem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.variance_table import VarianceTable
from smidgen.select.modules import operator_norm
from smidgen.weights.affine import AffineLayer, require_coverage
from smidgen.workflows.ramp.schemes import BlockKey, Candidate, Scheme, assembled


@dataclass(frozen=True)
class Point:
    """One size of one scheme, scored on validation data."""

    scheme: Scheme
    level: float
    repeat: int
    floats: int
    weights: int
    fraction: float
    precision: float
    temperature: float
    nll: float
    ece: float
    shares: tuple[BlockKey, ...] = field(repr=False)


@dataclass(eq=False)
class Work:
    """What the points are made from."""

    problem: SettledProblem
    posteriors: Mapping[float, LaplacePosterior]
    table: VarianceTable
    link: str

    def __post_init__(self) -> None:
        network = self.problem.model
        usable = {name for each in self.posteriors.values() for name in each.operators}
        self.layers = [m for m in require_coverage(network).layers if m.name in usable]
        self.norms = norms_of(network)
        self.likelihood = next(iter(self.posteriors.values())).likelihood
        self.objective = Objective(
            self.likelihood, self.table.outputs, self.table.targets, self.link
        )
        self.floats: dict[BlockKey, int] = {
            (percent, name): operator.floats
            for percent, posterior in self.posteriors.items()
            for name, operator in posterior.operators.items()
        }
        self.weights: dict[BlockKey, int] = {
            (percent, name): operator.values.numel()
            for percent, posterior in self.posteriors.items()
            for name, operator in posterior.operators.items()
        }

    def listed_norms(self) -> list[dict[str, Any]]:
        """Name, group and operator norm of every layer."""
        return listed_norms(self.layers, self.norms)

    def posterior(self, point: Point) -> LaplacePosterior:
        """The posterior that a point is, with how it was tuned."""
        candidate = Candidate(point.scheme, point.level, point.shares, point.repeat)
        found = assembled(
            candidate,
            self.posteriors,
            self.layers,
            precision=point.precision,
            temperature=point.temperature,
        )
        curve = score_precisions(self.objective, self.table, point.shares)
        edges = (curve.precisions[0], curve.precisions[-1])
        at_edge = len(curve.precisions) > 1 and point.precision in edges
        return replace(
            found, calibration=replace(curve, chosen_nll=point.nll, at_edge=at_edge)
        )

    def predictive(
        self, outputs: Tensor, covariance: Tensor, temperature: float
    ) -> CategoricalPredictive:
        """Turn outputs (N, C) and their covariance (N, K, K) into probabilities."""
        found = self.likelihood.predictive(
            outputs,
            covariance.double(),
            link=self.link,
            temperature=temperature,
            normals=self.objective.normals,
        )
        assert isinstance(found, CategoricalPredictive)
        return found


def norms_of(model: nn.Module) -> dict[str, float]:
    """Operator norm of every affine layer."""
    return {
        each.name: operator_norm(model, each) for each in require_coverage(model).layers
    }


def listed_norms(
    layers: Sequence[AffineLayer], norms: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Name, group and operator norm of some layers, as a record has them."""
    return [
        {"name": each.name, "group": each.group, "norm": norms[each.name]}
        for each in layers
    ]


def scored(work: Work, candidate: Candidate) -> Point:
    """Score a point: precision and temperature chosen together on validation data."""
    total = work.table.total(candidate.shares)
    scales, nlls = work.objective.best(total)
    best = int(nlls.argmin())
    temperature = float(scales[best])
    predictive = work.predictive(work.table.outputs, total[best], temperature)
    weights = sum(work.weights[share] for share in candidate.shares)
    return Point(
        candidate.scheme,
        candidate.level,
        candidate.repeat,
        sum(work.floats[share] for share in candidate.shares),
        weights,
        weights / sum(m.outputs * m.inputs + m.outputs * bool(m.bias) for m in work.layers),
        float(work.table.precisions[best]),
        temperature,
        float(nlls[best]),
        evaluate.expected_calibration_error(predictive, work.table.targets),
        candidate.shares,
    )


def curves(
    work: Work, points: Sequence[Point], chosen: Mapping[Scheme, Point]
) -> dict[str, Any]:
    """The validation curves, ready for figures."""
    base, scaled = (float(each) for each in work.objective.best(None))
    plain = CategoricalPredictive.from_logits(work.table.outputs)
    tempered = CategoricalPredictive.from_logits(work.table.outputs, base)
    error = evaluate.expected_calibration_error
    return {
        "points": [
            {
                name: value
                for name, value in asdict(point).items()
                if name != "shares" or point.scheme == "best-budget"
            }
            for point in points
        ],
        "chosen": {scheme: points.index(point) for scheme, point in chosen.items()},
        "map": {
            "nll": float(work.objective.nll(None)),
            "ece": error(plain, work.table.targets),
        },
        "temperature": {
            "nll": scaled,
            "ece": error(tempered, work.table.targets),
            "temperature": base,
        },
    }
