"""A ramping study of SWAG (the paper's Table 2): which weights are worth sampling?

SWAG has no table to choose from: every point is a run of its own. So the points are few,
each is noted as soon as it is scored on validation data, and a study that was interrupted
goes on with the missing ones. Each scheme's best point is reported on the test data.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import nn

from smidgen import evaluate, fit, select
from smidgen.errors import ArgumentError, StoreError
from smidgen.fit.calibration.samples import HeldOut, calibrate_from_outputs, held_out
from smidgen.fit.swag import SwagOptions
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.predictive import CategoricalPredictive
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior import store
from smidgen.posterior.swag import SwagPosterior
from smidgen.runtime.files import write_text
from smidgen.runtime.fingerprint import quick_fingerprint
from smidgen.runtime.record import Record
from smidgen.types import Batch
from smidgen.weights.affine import AffineLayer, require_coverage
from smidgen.weights.subset import Subset
from smidgen.workflows.comparison import compare, in_order, point_methods, posterior_method
from smidgen.workflows.ramp.points import listed_norms, norms_of

SwagScheme = Literal["max-mlp", "max-attention", "random", "magnitude", "full"]
SWAG_SCHEMES: tuple[SwagScheme, ...] = get_args(SwagScheme)
_NOTES = "points.json"


@dataclass(frozen=True)
class SwagRampSettings(SwagOptions):
    """What a ramping study of SWAG tries.

    `fractions` are shares of the affine layers' weights: single weights of the largest
    magnitude, or as many whole modules as stay within it. The rest is `fit.swag`'s.
    """

    schemes: tuple[SwagScheme, ...] = SWAG_SCHEMES
    fractions: tuple[float, ...] = (0.03, 0.1)
    trial_samples: int = 8
    seed: int = 0


@dataclass(frozen=True)
class SwagPoint:
    """One size of one scheme, scored on validation data."""

    scheme: SwagScheme
    level: float
    repeat: int
    floats: int
    weights: int
    fraction: float
    learning_rate: float | None
    temperature: float
    nll: float
    nll_untempered: float
    ece: float
    seconds: float


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
    """Run a ramping study of SWAG on a trained classifier.

    Args:
        model: The trained model, or its `Problem`; it is left as it was.
        train: Shuffled training batches; a loader that can be read again.
        validation: Labelled batches that choose.
        test: Labelled batches that only report.
        folder: Where points and their posteriors are kept, to be gone on from.
        settings: What to try.
        config: What else to note in the record. Points are gone on from only if it is the
            same, so name the data here.
        progress: Draw progress bars; in a log, a line a minute.

    Returns:
        The record of the study.
    """
    settings = settings or SwagRampSettings()
    given = as_problem(model)
    listed = list(_candidates(given.model, settings))
    notes = _Notes(Path(folder), _about(given, settings, config or {}))
    problem, _, _ = given.settle(train)
    _require_classifier(problem)
    for scheme, level, subset in listed:
        if notes.has(scheme, level):
            continue
        started = time.perf_counter()
        kept = notes.folder / f"{scheme}-{level:g}.checkpoint"
        posterior = fit.swag(
            problem,
            train,
            subset,
            validation=validation,
            **{**settings.arguments(), "samples": settings.trial_samples},
            seed=settings.seed,
            checkpoint=kept,
            progress=progress,
        )
        held = held_out(problem, posterior, validation, samples=settings.samples)
        posterior = calibrate_from_outputs(posterior, held)
        point = _point(scheme, level, posterior, held, time.perf_counter() - started)
        notes.add(point, posterior)
        kept.unlink(missing_ok=True)
    notes.keep({(scheme, level) for scheme, level, _ in listed})
    return _record(problem, notes, validation, test, settings, config, progress)


def _candidates(
    model: nn.Module, settings: SwagRampSettings
) -> Iterator[tuple[SwagScheme, float, Subset]]:
    """Every scheme's subsets, small to large, each once."""
    unknown = [each for each in settings.schemes if each not in SWAG_SCHEMES]
    if unknown or not settings.schemes:
        raise ArgumentError(
            f"schemes must be some of {', '.join(SWAG_SCHEMES)}, got {unknown or 'none'}."
        )
    if not settings.fractions or not all(0 < each <= 1 for each in settings.fractions):
        raise ArgumentError(
            f"fractions must be in (0, 1], got {list(settings.fractions)}. Try 0.1."
        )
    found = require_coverage(model)
    norms = norms_of(model)
    for scheme in settings.schemes:
        if scheme == "full":
            yield scheme, len(found.layers), select.sparse_kfac(model, percent=100)
        elif scheme == "magnitude":
            for fraction in sorted(set(settings.fractions)):
                yield scheme, fraction, select.weights(model, fraction=fraction)
        else:
            order = _order(scheme, found.layers, norms, settings.seed)
            size = sum(prod(shape) for shape in found.universe.values())
            most = (share * size for share in sorted(settings.fractions))
            for count in dict.fromkeys(_within(order, each) for each in most):
                names = [name for each in order[:count] for name in each.shapes]
                yield scheme, count, select.named(model, names)


def _order(
    scheme: SwagScheme, layers: Sequence[AffineLayer], norms: Mapping[str, float], seed: int
) -> list[AffineLayer]:
    """The layers of a scheme, those taken first in front."""
    if scheme == "random":
        generator = torch.Generator().manual_seed(seed)
        return [layers[i] for i in torch.randperm(len(layers), generator=generator)]
    group = scheme.removeprefix("max-")
    own = [each for each in layers if each.group == group]
    return sorted(own, key=lambda each: -norms[each.name])


def _within(order: Sequence[AffineLayer], most: float) -> int:
    """How many of the first layers hold at most so many weights; one at least."""
    sizes = [sum(prod(shape) for shape in each.shapes.values()) for each in order]
    return max(1, sum(total <= most for total in accumulate(sizes)))


def _require_classifier(problem: Problem) -> None:
    if not isinstance(problem.likelihood, Categorical):
        raise ArgumentError(
            f"a ramping study is for classifiers, got {problem.likelihood}. Collect "
            "posteriors one by one with fit.swag for other likelihoods."
        )


def _point(
    scheme: SwagScheme,
    level: float,
    posterior: SwagPosterior,
    held: HeldOut,
    seconds: float,
) -> SwagPoint:
    tuning = posterior.calibration
    assert tuning is not None
    predictive = posterior.likelihood.mixture(held.outputs, posterior.temperature)
    assert isinstance(predictive, CategoricalPredictive)
    return SwagPoint(
        scheme=scheme,
        level=level,
        repeat=0,
        floats=posterior.floats,
        weights=posterior.subset.size,
        fraction=posterior.subset.fraction,
        learning_rate=posterior.learning_rate,
        temperature=posterior.temperature,
        nll=tuning.chosen_nll,
        nll_untempered=tuning.nll,
        ece=evaluate.expected_calibration_error(predictive, held.targets),
        seconds=seconds,
    )


def _about(
    problem: Problem, settings: SwagRampSettings, config: Mapping[str, Any]
) -> dict[str, Any]:
    """What notes must be of: model, data, and all settings that shape a point."""
    own = asdict(settings)
    for name in ("schemes", "fractions"):
        del own[name]
    weights = quick_fingerprint(problem.model)
    return {"settings": own, "model": weights, "config": dict(config)}


class _Notes:
    """Points that are done, each with its posterior beside it."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self.folder = folder
        self.about: dict[str, Any] = json.loads(json.dumps(dict(about)))
        self.points: list[SwagPoint] = []
        path = folder / _NOTES
        if not path.exists():
            return
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["about"] != self.about:
            raise StoreError(
                f"{path} is of another study, with other settings or another model. Give "
                "another folder, or delete that one."
            )
        self.points = [SwagPoint(**each) for each in found["points"]]

    def keep(self, wanted: Set[tuple[SwagScheme, float]]) -> None:
        """Leave out points that an earlier study had and this one does not."""
        self.points = [p for p in self.points if (p.scheme, p.level) in wanted]

    def has(self, scheme: SwagScheme, level: float) -> bool:
        return any((p.scheme, p.level) == (scheme, level) for p in self.points)

    def best(self, scheme: SwagScheme) -> SwagPoint | None:
        own = [each for each in self.points if each.scheme == scheme]
        return min(own, key=lambda each: each.nll, default=None)

    def add(self, point: SwagPoint, posterior: SwagPosterior) -> None:
        self.points.append(point)
        store.save(posterior, self.folder / _folder(point), overwrite=True)
        plain = {"about": self.about, "points": [asdict(each) for each in self.points]}
        write_text(self.folder / _NOTES, json.dumps(plain, indent=1))

    def posterior(self, scheme: SwagScheme, problem: Problem) -> SwagPosterior:
        point = self.best(scheme)
        assert point is not None
        found = store.load(self.folder / _folder(point), problem)
        assert isinstance(found, SwagPosterior)
        return found


def _folder(point: SwagPoint) -> str:
    return f"{point.scheme}-{point.level:g}"


def _record(
    problem: Problem,
    notes: _Notes,
    validation: Iterable[Batch],
    test: Iterable[Batch],
    settings: SwagRampSettings,
    config: Mapping[str, Any] | None,
    progress: bool,
) -> Record:
    """Report the best point of each scheme on the test data."""
    schemes = [each for each in settings.schemes if notes.best(each) is not None]
    posteriors = {scheme: notes.posterior(scheme, problem) for scheme in schemes}
    tuning = posteriors[schemes[0]].calibration
    assert tuning is not None
    scale = tuning.map_scale
    plain, labels = point_methods(problem, validation, temperature=scale, progress=progress)
    error = evaluate.expected_calibration_error
    errors = [error(each.predictive, labels) for each in plain]
    tested = in_order(problem, test)
    methods, targets = point_methods(problem, tested, temperature=scale, progress=progress)
    for scheme, posterior in posteriors.items():
        method = posterior_method(scheme, posterior, problem, tested, progress=progress)
        point = notes.best(scheme)
        assert point is not None
        noted: dict[str, Any] = {
            "level": point.level,
            "weights": point.weights,
            "fraction": point.fraction,
            "validation_nll": point.nll,
            "validation_nll_untempered": point.nll_untempered,
        }
        methods.append(replace(method, settings={**method.settings, **noted}))
    chosen = {s: notes.points.index(p) for s in schemes if (p := notes.best(s))}
    small = [s for s in schemes if s != "full"] or schemes
    results = {
        **compare(methods, targets),
        "ramp": {
            "points": [asdict(each) for each in notes.points],
            "chosen": chosen,
            "map": {"nll": tuning.map_nll, "ece": errors[0]},
            "temperature": {
                "nll": tuning.map_scaled_nll,
                "ece": errors[1],
                "temperature": scale,
            },
            "best": min(small, key=lambda s: notes.points[chosen[s]].nll),
        },
        "norms": listed_norms(
            require_coverage(problem.model).layers, norms_of(problem.model)
        ),
        "data": {"validation": tuning.examples, "test": len(targets)},
        "seconds": {f"{p.scheme}, {p.weights:,} weights": p.seconds for p in notes.points},
    }
    described = {**(config or {}), "method": "swag", **asdict(settings)}
    return Record("ramp", described, results, seed=settings.seed)
