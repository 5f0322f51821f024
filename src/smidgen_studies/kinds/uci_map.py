"""The point estimate of a regression, its noise fitted on rows that calibrate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from smidgen import evaluate, fit
from smidgen.outputs.likelihood import Gaussian
from smidgen.outputs.problem import Problem
from smidgen.prediction import point_outputs
from smidgen.workflows.method import predict_from_outputs
from smidgen_studies.data.uci import (
    TableData,
    UciLevel,
    level_results,
    make_network,
    read_tables,
    save_network,
)
from smidgen_studies.engine.cell import Job
from smidgen_studies.engine.settings import Count, Positive, Unsigned

Data = TableData
ON_PROCESSOR = True


@dataclass(frozen=True)
class Settings:
    """How the network is trained."""

    epochs: Count = 1000
    patience: Count = 200
    learning_rate: Positive = 0.01
    weight_decay: Unsigned = 1e-3
    reported_methods = ("map",)


def run(job: Job) -> Mapping[str, Any]:
    """Train, save the network and report it."""
    settings: Settings = job.settings
    tables = read_tables(job)
    likelihood = Gaussian(1)
    start = make_network(tables.train[0].shape[1], job.seed)
    tuned = fit.finetune(
        Problem(start, likelihood),
        tables.shuffled(job.seed),
        validation=tables.loader("stopping"),
        seed=job.seed,
        settings=fit.FinetuneSettings(
            epochs=settings.epochs,
            patience=settings.patience,
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
        ),
    )
    save_network(tuned.model, job.artifact)
    held, _ = point_outputs(tuned.model, tables.loader("validation"))
    # The noise that minimises the validation NLL is the mean squared residual.
    noise = float((held - tables.validation[1]).square().mean())
    test, _ = point_outputs(tuned.model, tables.loader("test"))
    on_held, on_test = (
        predict_from_outputs(likelihood, outputs, noise) for outputs in (held, test)
    )
    level = UciLevel(
        percent=0.0,
        weights=0,
        fraction=0.0,
        floats=0,
        validation_nll=float(evaluate.nll(on_held, tables.validation[1]).mean()),
        predictive=on_test,
        settings={"noise": noise, "epochs": tuned.best.number},
    )
    return level_results("map", "MAP", [level], tables.test[1])
