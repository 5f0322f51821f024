"""Label efficiency: which rows of a pool to label next, round after round.

A network is trained from scratch on the rows labelled so far and its last layer made Bayesian,
by the marginal likelihood: no further label is spent on validation. `acquire` then chooses the
next rows. Test images only report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

import smidgen.select as select
from smidgen import decide, evaluate, fit, predict_batches
from smidgen.decide.acquire import Acquisition
from smidgen.errors import DataError
from smidgen.integrations.arrays import Arrays
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.predictive import CategoricalPredictive
from smidgen.outputs.problem import Problem
from smidgen.workflows.method import Method, score_methods
from smidgen_studies.data.images import ImageData, read_images, scoring_batches
from smidgen_studies.engine.cell import Job
from smidgen_studies.engine.settings import Count, Positive
from smidgen_studies.methods.decisions.networks import train_network

Data = ImageData
ON_PROCESSOR = True
Strategy = Literal["random", "entropy", "information", "information-diverse"]
# What `acquire` goes by, and whether a batch is to differ.
_WAYS: Mapping[Strategy, tuple[Acquisition, bool]] = {
    "random": ("random", False),
    "entropy": ("entropy", False),
    "information": ("information", False),
    "information-diverse": ("information", True),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How rows are chosen, how many and how often; `steps` is how long a network trains."""

    by: Strategy
    first: Count = 100
    step: Count = 50
    rounds: Count = 8
    width: Count = 8
    steps: Count = 300
    learning_rate: Positive = 3e-3

    @property
    def reported_methods(self) -> tuple[str, ...]:
        """Name of the method that its record has."""
        return (f"acquire-{self.by}",)


def run(job: Job) -> Mapping[str, Any]:
    """Label, train, predict and choose, round after round."""
    settings: Settings = job.settings
    images = read_images(job)
    pool, test = images.train, images.test
    most = settings.first + settings.rounds * settings.step
    if most > len(pool):
        raise DataError(
            f"the pool must hold {most} images for {settings.rounds} rounds, got {len(pool)}. "
            "Raise train_size."
        )
    # The same first rows for every way of choosing.
    generator = torch.Generator().manual_seed(job.seed)
    labelled = torch.randperm(len(pool), generator=generator)[: settings.first]
    curve = []
    for number in range(settings.rounds + 1):
        problem = _train(pool[labelled], images.train.classes, settings, job.seed)
        predictive = _predict(problem, pool[labelled], test)
        right = evaluate.correct(predictive, test.labels).double()
        nll = evaluate.nll(predictive, test.labels)
        row = {"accuracy": float(right.mean()), "nll": float(nll.mean())}
        curve.append({"labels": len(labelled), **row})
        if number < settings.rounds:
            rest = _others(labelled, len(pool))
            chosen = _choose(problem, pool, labelled, rest, settings, job.seed + number)
            labelled = torch.cat([labelled, rest[chosen]])
    method = Method(settings.reported_methods[0], predictive)
    area = sum(row["accuracy"] for row in curve) / len(curve)
    return {
        **score_methods([method], test.labels),
        "curve": curve,
        "mean_accuracy": area,
        "data": {"pool": len(pool), "test": len(test)},
    }


def _train(rows: Arrays, classes: int, settings: Settings, seed: int) -> Problem:
    model = train_network(
        rows,
        seed=seed,
        width=settings.width,
        steps=settings.steps,
        learning_rate=settings.learning_rate,
        classes=classes,
    )
    return Problem(model, Categorical(classes))


def _predict(problem: Problem, rows: Arrays, others: Arrays) -> CategoricalPredictive:
    """Predict other rows with a Bayesian last layer, fitted to the labelled ones."""
    batches = scoring_batches(rows)
    last = select.last_layer(problem, batches)
    posterior = fit.laplace(problem, batches, last, progress=False)
    posterior = fit.calibrate_by_evidence(posterior, problem)
    predictive = predict_batches(
        posterior, problem, scoring_batches(others), progress=False
    )
    assert isinstance(predictive, CategoricalPredictive)
    return predictive


def _choose(
    problem: Problem,
    pool: Arrays,
    labelled: Tensor,
    rest: Tensor,
    settings: Settings,
    seed: int,
) -> Tensor:
    predictive = _predict(problem, pool[labelled], pool[rest])
    by, diverse = _WAYS[settings.by]
    return decide.acquire(predictive, settings.step, by=by, diverse=diverse, seed=seed)


def _others(rows: Tensor, count: int) -> Tensor:
    """The numbers below `count` that are not among some."""
    mask = torch.ones(count, dtype=torch.bool)
    mask[rows] = False
    return mask.nonzero().squeeze(-1)
