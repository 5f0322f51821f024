"""Weight samples beside the linearised predictive, for Sparse-KFAC of a fine-tuned model.

Both are calibrated on the same few validation examples: the linearised predictive in
precision and temperature, weight samples in a multiple of that precision and a temperature
of their own. Test data only report. It needs a cell of kind `finetune`, which reports
temperature scaling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smidgen import calibrate, fit, select
from smidgen.fit.calibration.samples import held_out
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.problem import Problem
from smidgen.prediction import predict_batches
from smidgen.workflows.method import Method, score_methods
from smidgen_studies.data.text import TextData, draw
from smidgen_studies.engine.cell import Job
from smidgen_studies.engine.settings import Count, Percent, Rates, Several
from smidgen_studies.methods.text_models import load_needed_model

Data = TextData


@dataclass(frozen=True)
class Settings:
    """How many rows and columns, validation examples and draws.

    `multiples` of the linearised predictive's precision are tried for weight samples.
    """

    percent: Percent = 10.0
    examples: Count = 300
    draws: Several = 8
    test_draws: Several = 16
    multiples: Rates = (1.0, 10.0, 100.0, 1000.0, 10_000.0)
    reported_methods = ("linearised", "weight-samples")


def run(job: Job) -> Mapping[str, Any]:
    """Calibrate and score both ways of predicting."""
    settings: Settings = job.settings
    data = draw(job)
    model, tokenizer = load_needed_model(job)
    loaders = data.loaders(tokenizer)
    problem = Problem(model).with_likelihood(Categorical(data.classes))
    some = data.take_validation(settings.examples).loaders(tokenizer)["validation"]
    posterior = fit.laplace(
        problem, loaders["train"], select.sparse_kfac(model, percent=settings.percent)
    )
    scalar = fit.CalibrationSettings(scope="scalar")
    linear = calibrate(posterior, problem, some, settings=scalar)
    assert isinstance(linear.precision, float)
    tried = []
    for multiple in settings.multiples:
        candidate = linear.with_precision(linear.precision * multiple)
        held = held_out(problem, candidate, some, samples=settings.draws)
        temperature, nll = held.best(held.outputs)
        tried.append((nll, candidate.with_temperature(temperature)))
    best = min(tried, key=lambda pair: pair[0])[1]
    methods = []
    for name, used, samples in (
        ("linearised", linear, None),
        ("weight-samples", best, settings.test_draws),
    ):
        predictive = predict_batches(used, problem, loaders["test"], samples=samples)
        noted = {"precision": used.precision, "temperature": used.temperature}
        methods.append(Method(name, predictive, floats=used.floats, settings=noted))
    return {
        **score_methods(methods, data.labels("test")),
        "validation_nll": [nll for nll, _ in tried],
        "data": {"train": len(data.train), "test": len(data.test)},
    }
