"""What every ramping study shares: its points, how one is chosen, and its record."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from torch import Tensor, nn

from smidgen.errors import ArgumentError
from smidgen.evaluate import calibration_floor, expected_calibration_error
from smidgen.outputs.likelihood import Categorical, Likelihood
from smidgen.outputs.predictive import Predictive
from smidgen.runtime.record import Record
from smidgen.select.modules import operator_norm
from smidgen.weights.affine import AffineLayer, require_coverage
from smidgen.workflows.method import Method, predict_from_outputs, score_methods


@dataclass(frozen=True, kw_only=True)
class Point:
    """One size of one scheme, scored on validation data.

    `level` is the size in the scheme's own terms: a percentage, a number of layers, a
    fraction of the weights or a budget of floats.
    """

    scheme: str
    level: float
    repeat: int = 0
    floats: int
    weights: int
    fraction: float
    temperature: float
    nll: float
    ece: float
    ece_floor: float  # what chance alone gives

    def to_dict(self) -> dict[str, Any]:
        """List the point's values, as a record holds them."""
        return asdict(self)

    def settings(self) -> dict[str, Any]:
        """List what the row of a chosen point says of its size."""
        return {
            "level": self.level,
            "weights": self.weights,
            "fraction": self.fraction,
            "validation_nll": self.nll,
        }


AnyPoint = TypeVar("AnyPoint", bound=Point)


@dataclass(frozen=True)
class PointEstimate:
    """Validation scores of the model itself, and of its logits over a temperature."""

    nll: float
    temperature: float
    scaled_nll: float
    calibration: Mapping[str, float]
    scaled_calibration: Mapping[str, float]

    @classmethod
    def from_outputs(
        cls,
        outputs: Tensor,
        targets: Tensor,
        *,
        nll: float,
        temperature: float,
        scaled_nll: float,
    ) -> PointEstimate:
        """Add the calibration errors of a classifier's outputs (N, C) to known NLLs."""
        errors = [
            score_calibration(predict_from_outputs(None, outputs, scale), targets)
            for scale in (1.0, temperature)
        ]
        return cls(nll, temperature, scaled_nll, *errors)


def score_calibration(predictive: Predictive, targets: Tensor) -> dict[str, float]:
    """Compute the calibration error of a point, and what chance alone gives."""
    return {
        "ece": expected_calibration_error(predictive, targets),
        "ece_floor": calibration_floor(predictive, targets),
    }


def require_schemes(schemes: Sequence[str], known: Sequence[str]) -> None:
    """Refuse schemes that a study does not have."""
    unknown = [scheme for scheme in schemes if scheme not in known]
    if unknown or not schemes:
        raise ArgumentError(
            f"schemes must be some of {', '.join(known)}, got {unknown or 'none'}."
        )


def require_classifier(likelihood: Likelihood | None) -> None:
    """Refuse to ramp anything but a classifier."""
    if not isinstance(likelihood, Categorical):
        raise ArgumentError(
            f"model must be a classifier for a ramping study, got {likelihood}. Fit and "
            "calibrate posteriors one by one instead."
        )


def layer_norms(model: nn.Module) -> dict[str, float]:
    """Compute the operator norm of every affine layer, by the layer's name."""
    return {
        layer.name: operator_norm(model, layer) for layer in require_coverage(model).layers
    }


def choose_points(
    points: Sequence[AnyPoint], schemes: Sequence[str], most: float = 1.0
) -> dict[str, AnyPoint]:
    """Choose each scheme's best point by validation NLL, among those small enough."""
    # "full" is exempt from `most`, and so is a scheme without so small a point. The number
    # of random layers is chosen by the mean NLL over the repeats; the repeat with the
    # median NLL stands for it.
    chosen: dict[str, AnyPoint] = {}
    for scheme in schemes:
        candidates = [point for point in points if point.scheme == scheme]
        small = [point for point in candidates if point.fraction <= most]
        if scheme != "full" and small:
            candidates = small
        by_level: dict[float, list[AnyPoint]] = {}
        for point in candidates:
            by_level.setdefault(point.level, []).append(point)
        means = {
            level: sum(point.nll for point in repeats) / len(repeats)
            for level, repeats in by_level.items()
        }
        if means:
            repeats = by_level[min(means, key=means.__getitem__)]
            repeats.sort(key=lambda point: point.nll)
            chosen[scheme] = repeats[len(repeats) // 2]
    return chosen


def best_scheme(chosen: Mapping[str, Point], eligible: Collection[str]) -> str:
    """Name the scheme with the lowest validation NLL among the eligible, or among all."""
    return min(eligible or chosen, key=lambda scheme: chosen[scheme].nll)


def make_record(
    methods: Sequence[Method],
    targets: Tensor,
    points: Sequence[Point],
    chosen: Mapping[str, Point],
    *,
    best: str,
    estimate: PointEstimate,
    layers: Sequence[AffineLayer],
    norms: Mapping[str, float],
    rest: Mapping[str, Any],
    config: Mapping[str, Any],
    seed: int,
) -> Record:
    """Put the record of a ramping study together."""
    scaled = {"nll": estimate.scaled_nll, **estimate.scaled_calibration}
    results = {
        **score_methods(methods, targets),
        "ramp": {
            "points": [point.to_dict() for point in points],
            "chosen": {scheme: points.index(point) for scheme, point in chosen.items()},
            "map": {"nll": estimate.nll, **estimate.calibration},
            "temperature": {**scaled, "temperature": estimate.temperature},
            "best": best,
        },
        "norms": [
            {"name": layer.name, "group": layer.group, "norm": norms[layer.name]}
            for layer in layers
        ],
        **rest,
    }
    return Record("ramp", config, results, seed=seed)


class LapClock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Note the seconds since the lap before."""
        now = time.perf_counter()
        self.laps[name], self.last = now - self.last, now
