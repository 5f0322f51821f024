"""What decisions are made from: every way of predicting, on test data and on foreign data.

The point estimate, a temperature, posteriors of three sizes and an ensemble, all of the same
networks. Validation data calibrate; test data and foreign data are only predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import smidgen.evaluate as evaluate
import smidgen.select as select
from smidgen import calibrate, decide, fit
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Posterior
from smidgen.prediction import point_features, point_outputs
from smidgen.runtime.record import BASELINES
from smidgen.types import Batch
from smidgen.workflows.decisions.rows import ScoredRows
from smidgen.workflows.decisions.score import add_decisions
from smidgen.workflows.decisions.settings import CompareSettings
from smidgen.workflows.method import (
    Method,
    predict_point,
    predict_posterior,
    predict_shifted,
    read_examples,
    score_methods,
)
from smidgen_studies.methods.mixtures import mixture_methods

_OURS = "sparse-kfac-head"
DECIDING = (
    *BASELINES,
    "isotropic",
    "last-layer",
    _OURS,
    "ensemble",
    "ensemble-temperature",
)
"""Names of the methods that are compared."""
_MAX_ERRORS = (0.05, 0.1)


@dataclass(frozen=True, eq=False)
class DecisionData:
    """Batches in a fixed order: to fit, to calibrate, to report on, and foreign ones by name."""

    train: Iterable[Batch]
    validation: Iterable[Batch]
    test: Iterable[Batch]
    outside: Mapping[str, Iterable[Batch]]


def decide_all(
    members: Sequence[Problem], data: DecisionData, percent: float
) -> dict[str, Any]:
    """Predict with every method and score what may be decided, as a record has it."""
    # The first member is the point estimate of all methods but the ensemble.
    methods, targets = _predict_all(members, data, percent)
    rows = ScoredRows(targets, torch.arange(len(targets)))
    results = add_decisions(
        score_methods(methods, targets),
        methods,
        rows,
        CompareSettings(max_errors=_MAX_ERRORS),
        _OURS,
    )
    point = next(row for row in results["methods"] if row["name"] == BASELINES[0])
    for name, found in _detect_by_distance(members[0], data).items():
        point["score_detection"][name] |= found
    return results


def _detect_by_distance(
    problem: Problem, data: DecisionData
) -> dict[str, dict[str, dict[str, float]]]:
    """Tell foreign data from test data by the distance of their features to the training's."""

    def see(batches: Iterable[Batch]) -> tuple[Tensor, Tensor | None]:
        return point_features(problem, batches, progress=False)

    seen, labels = see(data.train)
    distances = {
        "distance": decide.FeatureDistance.fit(seen, labels),
        "class_distance": decide.FeatureDistance.fit(seen, labels, relative=False),
    }
    inside = see(data.test)[0]
    outside = {name: see(batches)[0] for name, batches in data.outside.items()}
    return {
        name: {
            score: evaluate.auroc_interval(
                distance.score(inside), distance.score(features)
            ).to_dict()
            for score, distance in distances.items()
        }
        for name, features in outside.items()
    }


def _predict_all(
    members: Sequence[Problem], data: DecisionData, percent: float
) -> tuple[list[Method], Tensor]:
    problem = members[0]
    posteriors = _fit_posteriors(problem, data, percent)
    calibration = next(iter(posteriors.values())).calibration
    assert calibration is not None
    test = read_examples(problem, data.test, progress=False)
    methods, targets = predict_point(problem.likelihood, test, calibration.map_scale)
    methods += [
        predict_posterior(name, posterior, problem, test, progress=False)
        for name, posterior in posteriors.items()
    ]
    methods = predict_shifted(methods, posteriors, problem, data.outside, progress=False)
    return [*methods, *_predict_ensemble(members, data)], targets


def _fit_posteriors(
    problem: Problem, data: DecisionData, percent: float
) -> dict[str, Posterior]:
    last = select.last_layer(problem, data.train)
    rows = select.sparse_kfac(problem.model, percent=percent)
    whole = select.sparse_kfac(problem.model, percent=100)
    fitted = {
        "isotropic": fit.laplace(
            problem, data.train, whole, structure="isotropic", progress=False
        ),
        "last-layer": fit.laplace(problem, data.train, last, progress=False),
        _OURS: fit.laplace(problem, data.train, rows | last, progress=False),
    }
    return {
        name: calibrate(posterior, problem, data.validation, progress=False)
        for name, posterior in fitted.items()
    }


def _predict_ensemble(members: Sequence[Problem], data: DecisionData) -> list[Method]:
    """Average the members' probabilities, as they are and with a temperature."""

    def outputs(batches: Iterable[Batch]) -> Tensor:
        return torch.stack([point_outputs(m, batches, progress=False)[0] for m in members])

    _, targets = point_outputs(members[0], data.validation, progress=False)
    assert targets is not None
    test = outputs(data.test)
    methods = mixture_methods(
        "ensemble",
        (outputs(data.validation), targets),
        test,
        floats=(len(members) - 1) * sum(p.numel() for p in members[0].model.parameters()),
        settings={"members": len(members)},
    )
    likelihood = Categorical(test.shape[-1])
    outside = {name: outputs(batches) for name, batches in data.outside.items()}
    return [
        replace(
            method,
            shifted={
                name: likelihood.mixture(drawn, method.settings["temperature"])
                for name, drawn in outside.items()
            },
        )
        for method in methods
    ]
