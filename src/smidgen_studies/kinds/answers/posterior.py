"""One posterior of a language model that chooses among answers, calibrated on validation data.

It needs a cell of kind `answers-map`, which reports the point estimate and temperature scaling.

    last-layer           the answers' rows of the output matrix, Kronecker factors
    sparse-kfac          rows and columns of every layer of base and adapters, and the last layer
    adapter              the adapters' weights, low-rank Kronecker factors
    adapter-isotropic    the same weights without any curvature
    swag-adapter         the same weights by SWAG
    tfb                  the same weights by training-free Bayesianisation
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from smidgen import calibrate, fit, select
from smidgen.errors import ArgumentError
from smidgen.posterior.base import Posterior
from smidgen.workflows.method import (
    Examples,
    Method,
    predict_posterior,
    read_examples,
    score_methods,
)
from smidgen_studies.data.answers import AnswerData, AnswerSplit, draw_answers
from smidgen_studies.data.text import SplitLoader
from smidgen_studies.engine.cell import Job
from smidgen_studies.engine.settings import Count, Percent, Positive, Rates, Several
from smidgen_studies.methods.answer_models import AnswerTask, load_task
from smidgen_studies.methods.tfb import TfbSettings, bayesianise

Data = AnswerData
AnswerPosterior = Literal[
    "last-layer", "sparse-kfac", "adapter", "adapter-isotropic", "swag-adapter", "tfb"
]
_DRAWN = ("swag-adapter", "tfb")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Which posterior; `anchors` are the validation rows that choose TFB's noise."""

    posterior: AnswerPosterior
    percent: Percent = 3.0
    steps: Count = 2000
    trial_steps: Count = 400
    every: Count = 5
    columns: Several = 20
    rates: Rates = (1e-3, 1e-2, 1e-1)
    samples: Several = 10
    anchors: Count = 96
    tolerance: Positive = TfbSettings.tolerance

    @property
    def reported_methods(self) -> tuple[str, ...]:
        """Names of the methods that its record has."""
        extra = (f"{self.posterior}-temperature",) if self.posterior == "tfb" else ()
        return (self.posterior, *extra)


def run(job: Job) -> Mapping[str, Any]:
    """Fit the posterior, calibrate it and report."""
    if not job.needs:
        raise ArgumentError(
            "this kind of cell must need one of kind 'answers-map', got none. Add needs."
        )
    data = draw_answers(job)
    task = load_task(job.needs[0].artifact, job.data, job.device)
    loaders = data.loaders(task.tokenizer)
    posterior = _fit(job, task, data, loaders)
    test = read_examples(task.problem, loaders["test"])
    assert test.targets is not None
    methods = list(_predict(job.settings, posterior, task, loaders["validation"], test))
    return {**score_methods(methods, test.targets), "data": data.sizes}


def _fit(
    job: Job, task: AnswerTask, data: AnswerSplit, loaders: Mapping[str, SplitLoader]
) -> Posterior:
    settings, problem = job.settings, task.problem
    train = loaders["train"]
    match settings.posterior:
        case "last-layer":
            return fit.laplace(problem, train, select.last_layer(problem, train))
        case "sparse-kfac":
            subset = select.sparse_kfac(problem.model, percent=settings.percent)
            return fit.laplace(problem, train, subset | select.last_layer(problem, train))
        case "adapter":
            return fit.laplace(problem, train, task.adapters)
        case "adapter-isotropic":
            return fit.laplace(problem, train, task.adapters, structure="isotropic")
        case "swag-adapter":
            return fit.swag(
                problem,
                data.shuffled(task.tokenizer, job.seed),
                task.adapters,
                validation=loaders["validation"],
                settings=fit.SwagSettings(
                    steps=settings.steps,
                    every=settings.every,
                    rank=settings.columns,
                    learning_rate=settings.rates,
                    trial_steps=settings.trial_steps,
                    samples=settings.samples,
                ),
                seed=job.seed,
                checkpoint=job.work / "swag",
            )
        case _:
            anchors = data.take_validation(settings.anchors).loaders(task.tokenizer)
            how = TfbSettings(tolerance=settings.tolerance, samples=settings.samples)
            return bayesianise(problem, anchors["validation"], how, job.seed)


def _predict(
    settings: Settings,
    posterior: Posterior,
    task: AnswerTask,
    validation: SplitLoader,
    test: Examples,
) -> Iterator[Method]:
    """Predict test data with the calibrated posterior; with TFB's as it is, too."""
    samples = settings.samples if settings.posterior in _DRAWN else None
    calibrated = calibrate(posterior, task.problem, validation, samples=samples)
    *plain, name = settings.reported_methods
    for uncalibrated in plain:
        # The paper has no temperature.
        as_it_is = calibrated.with_temperature(1.0)
        yield predict_posterior(uncalibrated, as_it_is, task.problem, test)
    yield predict_posterior(name, calibrated, task.problem, test)
