"""A ramping study of SWAG (the paper's Table 2): which weights are worth sampling?

SWAG has no table to choose from: every point is a run of its own. So there are few points.
Each is stored as soon as it is scored on validation data, and an interrupted study resumes
with the missing ones. Each scheme's best point is reported on the test data.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

import smidgen.fit as fit
import smidgen.select as select
from smidgen.errors import ArgumentError, StoreError
from smidgen.fit.calibration.samples import HeldOut, calibrate_from_outputs, held_out
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.posterior import store
from smidgen.posterior.base import Posterior
from smidgen.posterior.swag import SwagPosterior
from smidgen.runtime.artifact import read_sealed_json, reading, write_sealed_json
from smidgen.runtime.guard import quick_fingerprint
from smidgen.runtime.reading import make_from_json
from smidgen.runtime.record import Record
from smidgen.runtime.writing.writable import require_writable
from smidgen.types import Batch
from smidgen.weights.affine import AffineLayer, require_coverage
from smidgen.weights.origin import Origin
from smidgen.weights.subset import Subset
from smidgen.workflows.method import predict_point, predict_posterior, read_examples
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
from smidgen.workflows.ramp.schemes import order_layers

SwagScheme = Literal["max-mlp", "max-attention", "random", "magnitude", "full"]
SWAG_SCHEMES: tuple[SwagScheme, ...] = get_args(SwagScheme)
_POINTS = "points.json"


@dataclass(frozen=True)
class SwagOptions:
    """The part of `fit.SwagSettings` that commands and studies set.

    Both have validation data, so bad settings are refused here and not hours later, when
    they are used.
    """

    rates: tuple[float, ...] | None = None
    steps: int = 2000
    every: int = 5
    rank: int = 20
    trial_steps: int = 400
    samples: int = 32

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ArgumentError(f"samples must be 2 or more, got {self.samples}.")
        self.settings().rates(choosing=True)

    def settings(self, **others: Any) -> fit.SwagSettings:
        """Make the settings of `fit.swag`; `others` are further settings by name."""
        return fit.SwagSettings(
            **{
                "learning_rate": self.rates,
                "steps": self.steps,
                "every": self.every,
                "rank": self.rank,
                "trial_steps": self.trial_steps,
                "samples": self.samples,
                **others,
            }
        )


@dataclass(frozen=True)
class SwagRampSettings(SwagOptions):
    """What a ramping study of SWAG tries.

    `fractions` are fractions of the affine layers' weights: so many single weights of the
    largest magnitude, or as many whole layers as stay within it. `trial_samples` are the
    samples that score a learning rate. All other settings are those of `fit.swag`.
    """

    schemes: tuple[SwagScheme, ...] = SWAG_SCHEMES
    fractions: tuple[float, ...] = (0.03, 0.1)
    trial_samples: int = 8
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class SwagPoint(Point):
    """One size of one scheme, with its learning rate and what it took."""

    learning_rate: float | None
    nll_untempered: float
    seconds: float

    def settings(self) -> dict[str, Any]:
        """List what the row of a chosen point says of its size."""
        return {**super().settings(), "validation_nll_untempered": self.nll_untempered}


def swag_ramp(
    model: nn.Module | Problem,
    train: Iterable[Batch],
    validation: Iterable[Batch],
    test: Iterable[Batch],
    folder: str | Path,
    settings: SwagRampSettings | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Record:
    """Run a ramping study of SWAG on a trained classifier; it resumes from its folder."""
    # Points stored in `folder` are used again only if `config` is the same, so it must name
    # the data. `train` is read many times, and must be shuffled.
    settings = settings or SwagRampSettings()
    unsettled = as_problem(model)
    require_writable(folder, "folder", folder=True)
    candidates = list(_candidates(unsettled.model, settings))
    stored = _StoredPoints(Path(folder), _identity(unsettled, settings, config or {}))
    problem, _, _ = unsettled.settle(train)
    require_classifier(problem.likelihood)
    stored.write()
    for scheme, level, subset in candidates:
        checkpoint = stored.folder / f"{scheme}-{level:g}.checkpoint"
        if stored.has(scheme, level):
            # A run that was killed just after it had stored the point may have left one.
            checkpoint.unlink(missing_ok=True)
            continue
        started = time.perf_counter()
        posterior = fit.swag(
            problem,
            train,
            subset,
            validation=validation,
            settings=settings.settings(samples=settings.trial_samples),
            seed=settings.seed,
            checkpoint=checkpoint,
            progress=progress,
        )
        drawn = held_out(problem, posterior, validation, samples=settings.samples)
        posterior = calibrate_from_outputs(posterior, drawn)
        point = _score(scheme, level, posterior, drawn, time.perf_counter() - started)
        stored.add(point, posterior)
        checkpoint.unlink(missing_ok=True)
    # Points of an earlier study that tried more are left out.
    tried = {(scheme, level) for scheme, level, _ in candidates}
    points = [p for p in stored.points if (p.scheme, p.level) in tried]
    return _report(problem, stored, points, (validation, test), settings, config, progress)


def forget_other_points(
    model: nn.Module | Problem,
    folder: str | Path,
    settings: SwagRampSettings,
    *,
    config: Mapping[str, Any],
) -> None:
    """Remove what another study stored in a folder, or what cannot be read there."""
    folder = Path(folder)
    try:
        _StoredPoints(folder, _identity(as_problem(model), settings, config))
    except StoreError:
        for path in [p for s in SWAG_SCHEMES for p in folder.glob(f"{s}-*")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        # Last: while it is there, what is left is known to be another's.
        (folder / _POINTS).unlink()


def _candidates(
    model: nn.Module, settings: SwagRampSettings
) -> Iterator[tuple[str, float, Subset]]:
    """Yield every scheme's subsets, small to large, each once."""
    require_schemes(settings.schemes, SWAG_SCHEMES)
    if not settings.fractions or not all(0 < f <= 1 for f in settings.fractions):
        raise ArgumentError(
            f"fractions must be in (0, 1], got {list(settings.fractions)}. Try 0.1."
        )
    coverage, norms = require_coverage(model), layer_norms(model)
    size = sum(prod(shape) for shape in coverage.universe.values())
    fractions = sorted(set(settings.fractions))
    for scheme in settings.schemes:
        if scheme == "full":
            yield scheme, len(coverage.layers), select.sparse_kfac(model, percent=100)
        elif scheme == "magnitude":
            for fraction in fractions:
                yield scheme, fraction, select.weights(model, fraction=fraction)
        else:
            generator = torch.Generator().manual_seed(settings.seed)
            order = order_layers(scheme, coverage.layers, norms, generator)
            counts = (_count_within(order, fraction * size) for fraction in fractions)
            for count in dict.fromkeys(counts):
                names = [name for layer in order[:count] for name in layer.shapes]
                origin = Origin(scheme, {"count": count})
                yield scheme, count, replace(select.named(model, names), origin=origin)


def _count_within(order: Sequence[AffineLayer], most: float) -> int:
    """Count how many of the first layers hold at most so many weights; at least one."""
    sizes = [sum(prod(shape) for shape in layer.shapes.values()) for layer in order]
    return max(1, sum(total <= most for total in accumulate(sizes)))


def _score(
    scheme: str, level: float, posterior: SwagPosterior, drawn: HeldOut, seconds: float
) -> SwagPoint:
    calibration = posterior.calibration
    assert calibration is not None
    predictive = posterior.likelihood.mixture(drawn.outputs, posterior.temperature)
    return SwagPoint(
        scheme=scheme,
        level=level,
        floats=posterior.floats,
        weights=posterior.subset.size,
        fraction=posterior.subset.fraction,
        learning_rate=posterior.learning_rate,
        temperature=posterior.temperature,
        nll=calibration.chosen_nll,
        nll_untempered=calibration.nll,
        repeat=0,
        **score_calibration(predictive, drawn.targets),
        seconds=seconds,
    )


def _identity(
    problem: Problem, settings: SwagRampSettings, config: Mapping[str, Any]
) -> dict[str, Any]:
    """List what stored points depend on: model, data, and the settings of each point."""
    choosing = ("schemes", "fractions")
    shaping = {n: value for n, value in asdict(settings).items() if n not in choosing}
    weights = quick_fingerprint(problem.model)
    return {"settings": shaping, "model": weights, "config": dict(config)}


class _StoredPoints:
    """Points that are done, each with its posterior beside it."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self.identity: dict[str, Any] = json.loads(json.dumps(dict(identity)))
        self.points: list[SwagPoint] = []
        path = folder / _POINTS
        if not path.exists():
            return
        advice = "Give another folder, or delete that one."
        stored = read_sealed_json(path, what="study's points", advice=advice)
        if stored.get("about") != self.identity:
            raise StoreError(
                f"{path} belongs to another study, with other settings or another model. "
                f"{advice}"
            )
        with reading(path, "study's points", advice):
            self.points = [make_from_json(SwagPoint, each) for each in stored["points"]]

    def has(self, scheme: str, level: float) -> bool:
        return any((p.scheme, p.level) == (scheme, level) for p in self.points)

    def add(self, point: SwagPoint, posterior: SwagPosterior) -> None:
        self.points.append(point)
        store.save(posterior, self._path(point), overwrite=True)
        self.write()

    def write(self) -> None:
        """Say whose points these are, also before there are any."""
        points = [point.to_dict() for point in self.points]
        about = {"about": self.identity, "points": points}
        write_sealed_json(self.folder / _POINTS, about)

    def load(self, point: SwagPoint, problem: Problem) -> Posterior:
        return store.load_saved(self._path(point), problem)

    def _path(self, point: SwagPoint) -> Path:
        return self.folder / f"{point.scheme}-{point.level:g}"


def _report(
    problem: SettledProblem,
    stored: _StoredPoints,
    points: Sequence[SwagPoint],
    data: tuple[Iterable[Batch], Iterable[Batch]],
    settings: SwagRampSettings,
    config: Mapping[str, Any] | None,
    progress: bool,
) -> Record:
    """Report the best point of each scheme on the test data."""
    chosen = choose_points(points, settings.schemes)
    posteriors = {scheme: stored.load(point, problem) for scheme, point in chosen.items()}
    calibration = next(iter(posteriors.values())).calibration
    assert calibration is not None
    validation, test = (read_examples(problem, d, progress=progress) for d in data)
    assert validation.targets is not None
    estimate = PointEstimate.from_outputs(
        validation.outputs,
        validation.targets,
        nll=calibration.map_nll,
        temperature=calibration.map_scale,
        scaled_nll=calibration.map_scaled_nll,
    )
    methods, targets = predict_point(problem.likelihood, test, estimate.temperature)
    for scheme, posterior in posteriors.items():
        method = predict_posterior(scheme, posterior, problem, test, progress=progress)
        noted = {**method.settings, **chosen[scheme].settings()}
        methods.append(replace(method, settings=noted))
    return make_record(
        methods,
        targets,
        points,
        chosen,
        best=best_scheme(chosen, [scheme for scheme in chosen if scheme != "full"]),
        estimate=estimate,
        layers=require_coverage(problem.model).layers,
        norms=layer_norms(problem.model),
        rest={
            "data": {"validation": calibration.examples, "test": len(targets)},
            "seconds": {f"{p.scheme}, {p.weights:,} weights": p.seconds for p in points},
        },
        config={**(config or {}), "method": "swag", **asdict(settings)},
        seed=settings.seed,
    )
