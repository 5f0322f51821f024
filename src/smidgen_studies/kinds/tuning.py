"""One way of fine-tuning a text model, scored by its task's own metric.

Which weights move is the `method`. Its learning rate is set, or it is the one of lowest
validation NLL among the cells of this kind that it needs: those are trials, with
`report = false`, and never look at test rows. "displacement", "published" and "bayestune"
need a cell of kind `scales` besides. Outputs are kept to three digits, in the order of the
test rows, for paired comparisons.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import log
from typing import Any

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DivergedError
from smidgen.report.names import label_method
from smidgen_studies.data.text import TextData, draw
from smidgen_studies.engine.cell import FinishedCell, Job
from smidgen_studies.engine.settings import Count, Fraction, Positive
from smidgen_studies.methods.task_scores import score_task
from smidgen_studies.methods.trials import TrialChoice, choose_values, trial_results
from smidgen_studies.methods.tuned_text import load_start, tune
from smidgen_studies.methods.tuning_methods import TuningMethod, base_method

_DIGITS = 3

Data = TextData


@dataclass(frozen=True)
class Settings:
    """What is tuned, and how.

    `rank` is LoRA's; `fraction` is for methods that choose single weights.
    """

    method: TuningMethod
    learning_rate: Positive | None = None
    epochs: Count = 2
    fraction: Fraction = 0.005
    rank: Count = 6
    base: str = "all-MiniLM-L6-v2"
    report: bool = True

    @property
    def reported_methods(self) -> tuple[str, ...]:
        """Names of the methods that its record has."""
        return (self.method,) if self.report else ()


def run(job: Job) -> Mapping[str, Any]:
    """Tune by one method; score it on test rows unless it is a trial."""
    settings: Settings = job.settings
    if settings.method == "constant":
        return _score_constant(job)
    trials = [need for need in job.needs if _tries(need, settings.method)]
    choice = choose_values({"learning_rate": settings.learning_rate}, trials, {})
    if "learning_rate" not in choice.values:
        raise ArgumentError(
            f"method {settings.method!r} must have a learning_rate, or need trials: cells of "
            "kind 'tuning' with report = false. Got neither. Add one."
        )
    results: dict[str, Any] = {"choice": choice.to_dict()}
    start = load_start(job, settings.base)
    scales = (need for need in job.needs if need.record.config["kind"] == "scales")
    try:
        tuned = tune(
            base_method(settings.method),
            start,
            fraction=settings.fraction,
            rank=settings.rank,
            scales=next(scales, None),
            work=job.work,
            epochs=settings.epochs,
            **choice.values,
        )
    except DivergedError:
        if settings.report:
            raise
        # Of a trial that is a result: this rate is too high.
        return {**results, "trial": _trial(settings, choice)}
    results |= {
        "validation": [asdict(epoch) for epoch in tuned.history],
        "trained": tuned.trained,
        "delta_bytes": tuned.delta_bytes,
        "cpu_seconds": {"choosing": tuned.choosing_seconds, "tuning": tuned.tuning_seconds},
    }
    if not settings.report:
        best = tuned.best
        return {**results, "trial": _trial(settings, choice, best.nll, best.accuracy)}
    about = start.data.about
    scored = _score(
        settings.method,
        about,
        *start.predict_test(tuned.model),
        noise=tuned.noise if about.numbers else None,
        costs={"trained": tuned.trained, "stored_bytes": tuned.delta_bytes},
    )
    return {**results, **scored}


def _tries(need: FinishedCell, method: TuningMethod) -> bool:
    """Whether it is a trial of this method, for as long or shorter."""
    trial = need.record.results.get("trial")
    return trial is not None and trial["method"] in (method, base_method(method))


def _trial(
    settings: Settings, choice: TrialChoice, *scores: float | None
) -> dict[str, Any]:
    return trial_results(
        settings.method,
        label_method(settings.method, "tuning"),
        ["learning_rate"],
        choice,
        *scores,
    )


def _score_constant(job: Job) -> Mapping[str, Any]:
    """Predict the training rows' mean, or their share of ones, for every test row."""
    data = draw(job)
    labels = torch.tensor(data.train.labels, dtype=torch.float64)
    middle, noise = float(labels.mean()), None
    if data.about.numbers:
        held = torch.tensor(data.validation.labels, dtype=torch.float64)
        value, noise = middle, float((held - middle).square().mean())
    else:
        value = log(middle / (1 - middle))
    targets = torch.tensor(data.test.labels, dtype=torch.float64)
    values = torch.full_like(targets, value)
    costs = {"trained": 0}
    scored = _score("constant", data.about, values, targets, noise=noise, costs=costs)
    return {**costs, **scored}


def _score(
    method: TuningMethod,
    about: TextData,
    values: Tensor,
    targets: Tensor,
    *,
    noise: float | None,
    costs: Mapping[str, int],
) -> dict[str, Any]:
    """Score the rounded values, so that the record gives the same scores again."""
    values, targets = (x.double().round(decimals=_DIGITS) for x in (values, targets))
    scores = score_task(about.metric, values, targets, noise)
    entry = {
        "name": method,
        "label": label_method(method, "tuning"),
        "scores": {name: {"value": value} for name, value in scores.items()},
        **costs,
    }
    return {
        "methods": [entry],
        "metric": about.metric,
        "noise": noise,
        "outputs": [round(value, _DIGITS) for value in values.tolist()],
        "targets": [round(target, _DIGITS) for target in targets.tolist()],
        "data": {"test": len(targets)},
    }
