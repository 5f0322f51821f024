"""Methods side by side on one test set: what a record of a comparison holds.

Test data only report. The point estimate and temperature scaling are always shown
beside the posteriors, with intervals and paired differences.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import torch
from torch import Tensor

from smidgen import evaluate
from smidgen.affine import coverage
from smidgen.blocks import blocks
from smidgen.errors import DataError
from smidgen.guard import untouched
from smidgen.labelled import labelled
from smidgen.posterior import Posterior, Tuning
from smidgen.prediction import point_outputs
from smidgen.predictive import CategoricalPredictive
from smidgen.problem import Problem
from smidgen.record import BASELINES
from smidgen.samples import SAMPLES
from smidgen.study.predicting import predicted
from smidgen.subset import Subset
from smidgen.swag import SwagPosterior
from smidgen.types import Batch

LABELS = {
    "map": "MAP",
    "temperature": "Temperature",
    "last-layer": "Last layer",
    "sparse-kfac": "Sparse-KFAC",
    "max-mlp": "Max norm, MLP",
    "min-mlp": "Min norm, MLP",
    "max-attention": "Max norm, attention",
    "min-attention": "Min norm, attention",
    "random": "Random modules",
    "full": "All maps",
    "best-budget": "Best budget",
    "modules": "Modules",
    "single-weights": "Single weights",
    "swag": "SWAG",
    "magnitude": "Largest weights",
    "constant": "Constant predictor",
    "dropout": "MC dropout",
    "dropout-temperature": "MC dropout, temperature",
    "ensemble": "Deep ensemble",
    "ensemble-temperature": "Deep ensemble, temperature",
}
_TIMED_BATCHES, _TIMED_ROUNDS = 4, 5
# One round is enough of what is slow.
_TIMED_SECONDS = 20.0
_DRAWS = 300


@dataclass(frozen=True, eq=False)
class Method:
    """One way of predicting, with its predictions and its cost.

    `elsewhere` holds predictions on other data, by name; `relative_seconds` is the time
    of a prediction over the time of a plain forward pass.
    """

    name: str
    predictive: CategoricalPredictive
    elsewhere: Mapping[str, CategoricalPredictive] = field(default_factory=dict)
    floats: int = 0
    relative_seconds: float | None = None
    settings: Mapping[str, float | bool | None] = field(default_factory=dict)


def in_order(problem: Problem, batches: Iterable[Batch]) -> list[Batch]:
    """Read batches once, so that all methods see one order also of a loader that shuffles.

    Args:
        problem: The model; its random state is as before.
        batches: The loader.

    Returns:
        The batches.
    """
    with untouched(problem.model):
        return list(batches)


def point_methods(
    problem: Problem,
    test: Iterable[Batch],
    *,
    temperature: float | None,
    elsewhere: Mapping[str, Iterable[Batch]] | None = None,
    progress: bool = True,
) -> tuple[list[Method], Tensor]:
    """Predict with the model as it is, and with its logits divided by a temperature.

    Args:
        problem: The model.
        test: Labelled test batches; rows labelled −100 are left out.
        temperature: Fitted on held-out data; None leaves that method out.
        elsewhere: Other data by name, with or without labels.
        progress: Draw progress bars; in a log, a line a minute.

    Returns:
        The methods "map" and "temperature" on the examples, or tokens, that have a label,
        and those labels.

    Raises:
        DataError: If a test batch has no labels.
    """
    logits, targets = _labelled_outputs(problem, test, progress)
    if targets is None:
        raise DataError(
            "the test data must have labels, and a batch has none, or -100 alone. Pass "
            "labelled data."
        )
    others = {
        name: _labelled_outputs(problem, batches, progress)[0]
        for name, batches in (elsewhere or {}).items()
    }
    divisors = {"map": 1.0}
    if temperature is not None:
        divisors["temperature"] = temperature
    from_logits = CategoricalPredictive.from_logits
    methods = [
        Method(
            name,
            from_logits(logits, divisor),
            {other: from_logits(found, divisor) for other, found in others.items()},
            relative_seconds=1.0,
            settings={} if name == "map" else {"temperature": divisor},
        )
        for name, divisor in divisors.items()
    ]
    return methods, targets


def posterior_method(
    name: str,
    posterior: Posterior | SwagPosterior,
    problem: Problem,
    test: Sequence[Batch],
    *,
    elsewhere: Mapping[str, Sequence[Batch]] | None = None,
    link: str = "auto",
    progress: bool = True,
) -> Method:
    """Predict with a posterior and measure what a prediction costs.

    Args:
        name: Name of the method in the record.
        posterior: The tuned posterior.
        problem: The model it belongs to.
        test: The batches that the point estimate saw, as `in_order` reads them; rows
            labelled −100 are left out.
        elsewhere: Other data by name, read likewise.
        link: How logits become probabilities.
        progress: Draw progress bars; in a log, a line a minute.

    Returns:
        The method.
    """

    def found(batches: Sequence[Batch]) -> CategoricalPredictive:
        made = predicted(posterior, problem, batches, link=link, progress=progress)
        assert isinstance(made, CategoricalPredictive)
        wanted = [problem.targets(batch) for batch in batches]
        targets = [each.flatten() for each in wanted if each is not None]
        if len(targets) < len(wanted):
            return made
        return made.take(_counting(torch.cat(targets)))

    return Method(
        name,
        found(test),
        {other: found(batches) for other, batches in (elsewhere or {}).items()},
        floats=posterior.floats,
        relative_seconds=relative_seconds(posterior, problem, test, link=link),
        settings=posterior_settings(posterior),
    )


def _labelled_outputs(
    problem: Problem, batches: Iterable[Batch], progress: bool
) -> tuple[Tensor, Tensor | None]:
    """Outputs and targets of the rows that count; None for targets that are not there."""
    outputs, targets = point_outputs(problem, batches, progress=progress)
    if targets is None:
        return outputs, None
    kept = _counting(targets)
    return outputs[kept], targets[kept] if labelled(targets).any() else None


def _counting(targets: Tensor) -> Tensor:
    """The rows with a label, and not padding; all of them in data that have none."""
    kept = labelled(targets)
    return kept if kept.any() else ~kept


def posterior_settings(posterior: Posterior | SwagPosterior) -> dict[str, Any]:
    """List what was chosen on held-out data, as a record's method notes it."""
    if isinstance(posterior, Posterior):
        found = posterior.precisions.values()
        low, high = min(found), max(found)
        return {
            **({"precision": low} if low == high else {"precision_range": [low, high]}),
            "temperature": posterior.temperature,
            "precision_at_edge": bool(posterior.tuning and posterior.tuning.at_edge),
        }
    return {
        "temperature": posterior.temperature,
        "learning_rate": posterior.learning_rate,
        "rates": [rate for rate, _ in posterior.rates],
        "snapshots": posterior.snapshots,
        "samples": posterior.tuning.samples if posterior.tuning else SAMPLES,
    }


def posterior_summary(posterior: Posterior | SwagPosterior) -> dict[str, Any]:
    """List the size of a tuned posterior, and how held-out data chose it."""
    assert posterior.tuning is not None
    own: dict[str, Any]
    if isinstance(posterior, Posterior):
        own = {"precision": posterior.plain_precision}
    else:
        own = {"learning_rate": posterior.learning_rate}
    return {
        "weights": posterior.subset.size,
        "fraction": posterior.subset.fraction,
        "floats": posterior.floats,
        **own,
        "temperature": posterior.temperature,
        "tuning": asdict(posterior.tuning),
    }


def relative_seconds(
    posterior: Posterior | SwagPosterior,
    problem: Problem,
    batches: Sequence[Batch],
    *,
    link: str = "auto",
) -> float:
    """Time a prediction over a plain forward pass: interleaved, the median ratio."""
    some = batches[:: max(1, len(batches) // _TIMED_BATCHES)][:_TIMED_BATCHES]
    ratios: list[float] = []
    spent = 0.0
    while not ratios or (len(ratios) < _TIMED_ROUNDS and spent < _TIMED_SECONDS):
        started = time.perf_counter()
        point_outputs(problem, some, progress=False)
        between = time.perf_counter()
        predicted(posterior, problem, some, link=link, progress=False)
        ended = time.perf_counter()
        ratios.append((ended - between) / (between - started))
        spent += ended - started
    return median(ratios)


def compare(
    methods: Sequence[Method], targets: Tensor, *, split: Sequence[float] | None = None
) -> dict[str, Any]:
    """Score all methods on the test data: the results of a record.

    Args:
        methods: The methods; those of `BASELINES` are what the others are compared with.
        targets: The test labels.
        split: How split human raters were on each test example, if that is known.

    Returns:
        Plain numbers: scores with intervals, curves, paired differences.
    """
    baselines = [each for each in methods if each.name in BASELINES]
    return {
        "methods": [_scored(each, targets, split) for each in methods],
        "differences": [
            difference
            for each in methods
            for base in baselines
            if each.name not in ("map", base.name)
            for difference in _differences(each, base, targets)
        ],
    }


def _scored(
    method: Method, targets: Tensor, split: Sequence[float] | None
) -> dict[str, Any]:
    predictive = method.predictive
    correct = evaluate.correct(predictive, targets)
    confidence = predictive.confidence
    scores = evaluate.summarise(predictive, targets)
    found: dict[str, Any] = {
        "name": method.name,
        "label": LABELS.get(method.name, method.name),
        "scores": {name: interval.to_dict() for name, interval in scores.items()},
        "floats": method.floats,
        "relative_seconds": method.relative_seconds,
        "reliability": evaluate.reliability_curve(confidence, correct, bins=10).to_dict(),
        "risk_coverage": evaluate.risk_coverage(confidence, correct).to_dict(),
        **method.settings,
    }
    if method.elsewhere:
        found["detection"] = {
            name: evaluate.bootstrap_auroc(
                predictive.entropy, other.entropy, draws=_DRAWS
            ).to_dict()
            for name, other in method.elsewhere.items()
        }
    if split is not None:
        disagreement = torch.tensor(split, dtype=torch.float64)
        found["disagreement"] = evaluate.rank_correlation(
            predictive.entropy, disagreement
        ).to_dict()
    return found


def _differences(method: Method, base: Method, targets: Tensor) -> list[dict[str, Any]]:
    pair = (method.predictive, base.predictive)
    nll = evaluate.paired_difference(*(evaluate.nll(p, targets) for p in pair))
    ece = evaluate.paired_calibration_difference(*pair, targets, draws=_DRAWS)
    return [
        {"method": method.name, "baseline": base.name, "score": score, **found.to_dict()}
        for score, found in (("nll", nll), ("ece_equal_mass", ece))
    ]


def precision_curve(posterior: Posterior) -> dict[str, Any] | None:
    """List the validation NLL over the grid of precisions, for a figure."""
    tuning: Tuning | None = posterior.tuning
    if tuning is None:
        return None
    return {
        "precision": list(tuning.precisions),
        "nll": list(tuning.nll),
        "nll_with_temperature": list(tuning.joint_nll),
        # Several precisions are not one point of the curve.
        "chosen_precision": posterior.precision
        if isinstance(posterior.precision, float)
        else None,
        "chosen_precisions": posterior.precisions,
        "chosen_temperature": posterior.temperature,
        "map_nll": tuning.map_nll,
        "temperature_nll": tuning.map_scaled_nll,
    }


def subset_summary(
    problem: Problem, posterior: Posterior | SwagPosterior, percent: float | None = None
) -> dict[str, Any]:
    """List which rows and columns of which map are stochastic, for a picture."""
    subset = posterior.subset
    affine = coverage(problem.model).universe
    parts = {name: part for name, part in subset.parts.items() if name in affine}
    summary: dict[str, Any] = {
        "size": subset.size,
        "total": subset.total,
        "fraction": subset.fraction,
        "maps": [
            {
                "name": block.map.name,
                "group": block.map.group,
                "outputs": block.map.outputs,
                "inputs": block.map.inputs,
                "rows": block.rows.tolist(),
                "columns": block.columns.tolist(),
            }
            for block in (
                blocks(problem.model, Subset(subset.universe, parts)) if parts else ()
            )
        ],
    }
    return summary if percent is None else {"percent": percent, **summary}
