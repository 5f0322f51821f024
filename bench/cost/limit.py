"""Fit and predict against the limit: a bare forward and activation-only backward pass.

MiniLM, fine-tuned on the demo's sentences so that calibrated precisions are real, on a batch
of 16 × 64 random tokens, full or padded. The limit runs the same model on the same batch
without any tap. Every round runs all sides once; a ratio is the median over rounds of one
side's time over its limit's of the same round. Runs differ by a few percent. Memory is
measured in processes of their own, and so is laplace-torch, which needs gigabytes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import smidgen
from bench.cost.posteriors import TOLERANCE, Way, calibrated_posteriors, predict_by
from bench.measuring import (
    LIMIT,
    Tokens,
    interleaved,
    make_tokens,
    median_ratio,
    run_child,
    run_limit,
)
from bench.models.sentiment_minilm import FinetunedMiniLM, load_finetuned_minilm
from smidgen.curvature.kronecker import KroneckerAccumulator
from smidgen.curvature.taps import tapped
from smidgen.posterior.output_covariance import output_moments
from smidgen.runtime.record import Record
from smidgen.weights.blocks import find_blocks

BATCH, TOKENS, PASS, ROUNDS, WARM = 16, 64, 4, 9, 1
PRECISIONS = 21
TARGETS = {
    "fit 10 %": 1.05,
    f"predict 10 %, {PRECISIONS} precisions": 1.08,
    "predict 100 %, low-rank": 1.4,
    "predict 100 %, isotropic": 1.15,
    "floats of low-rank ÷ of full factors": 0.02,
}


def run() -> Record:
    """Measure all sides and return the record."""
    minilm = load_finetuned_minilm()
    batch = make_tokens(BATCH, TOKENS, torch.Generator().manual_seed(0))
    posteriors = calibrated_posteriors(minilm, 100)
    sides = _sides(minilm, batch, posteriors)
    times = interleaved(sides, rounds=ROUNDS, warm=WARM)
    limits = {name: "padded limit" if "padded" in name else "limit" for name in times}
    ratios = {
        name: median_ratio(found, times[limits[name]])
        for name, found in times.items()
        if "limit" not in name
    }
    peer = run_child("bench.peer_side", "MiniLM", "theirs all")
    for work in ("fit", "predict"):
        ratios[f"laplace-torch {work} 100 %"] = round(peer[work] / peer["limit"], 1)
    memory = _measure_memory(posteriors)
    memory |= {
        f"laplace-torch {work} 100 %": peer[f"{work} bytes"] for work in ("fit", "predict")
    }
    config = {
        "model": "all-MiniLM-L6-v2, fine-tuned on the demo's sentences",
        "batch": BATCH,
        "tokens": TOKENS,
        "batches in a pass": PASS,
        "rounds": ROUNDS,
        "threads": torch.get_num_threads(),
        "limit": LIMIT,
        "tolerance of low-rank": TOLERANCE,
        "fit": "the pass alone, unless it says 'with decompositions'",
        "memory": "peak resident bytes above those before the work, in a process of its own",
        "targets": TARGETS,
    }
    results = {
        "time / limit": ratios,
        "bytes": memory,
        "posteriors": _describe(minilm, posteriors),
    }
    return Record("bench", config, results, seed=0)


def _sides(
    minilm: FinetunedMiniLM,
    batch: Tokens,
    posteriors: Mapping[Way, smidgen.LaplacePosterior],
) -> dict[str, Callable[[], Any]]:
    model, problem = minilm.model, minilm.problem
    lengths = torch.linspace(TOKENS // 4, TOKENS, BATCH).long()
    padded = {**batch, "attention_mask": (torch.arange(TOKENS) < lengths[:, None]).long()}
    sides: dict[str, Callable[[], Any]] = {
        "limit": lambda: [run_limit(model, batch) for _ in range(PASS)],
        "padded limit": lambda: [run_limit(model, padded) for _ in range(PASS)],
        "forward": lambda: smidgen.point_outputs(problem, [batch] * PASS, progress=False),
    }
    few = smidgen.select.sparse_kfac(model, percent=10)
    fitted = smidgen.fit.laplace(problem, minilm.train, few, progress=False)
    for data, mark in ((batch, ""), (padded, "padded ")):
        sides[f"{mark}fit 10 %"] = pass_over(problem, few, [data] * PASS)
        sides[f"{mark}predict 10 %, {PRECISIONS} precisions"] = _scan(problem, fitted, data)
    exact = posteriors["exact"]
    sides["fit 100 %"] = pass_over(problem, exact.subset, [batch] * PASS)
    sides["fit 100 % with decompositions"] = lambda: smidgen.fit.laplace(
        problem, [batch] * PASS, exact.subset, progress=False
    )
    sides[f"predict 100 %, {PRECISIONS} precisions"] = _scan(problem, exact, batch)
    for way, posterior in posteriors.items():
        sides[f"predict 100 %, {way}"] = predict_by(way, posterior, problem, [batch] * PASS)
    return sides


def pass_over(
    problem: smidgen.Problem, subset: smidgen.Subset, batches: Sequence[Tokens]
) -> Callable[[], None]:
    """A pass without the eigendecompositions, which come once, after all batches."""
    chosen = find_blocks(problem.model, subset)
    sums = KroneckerAccumulator(problem, chosen, "reduce")

    def side() -> None:
        with tapped(problem, chosen) as taps:
            for batch in batches:
                sums.add(taps.run(batch))

    return side


def _scan(
    problem: smidgen.Problem, posterior: smidgen.LaplacePosterior, batch: Tokens
) -> Callable[[], Any]:
    """A pass over the batches: what is set up once per pass is shared by them."""
    chosen = find_blocks(problem.model, posterior.subset)
    terms = posterior.covariance_terms(chosen, torch.logspace(-4, 6, PRECISIONS))
    followed = posterior.likelihood.choose_directions("quadrature")
    return lambda: list(output_moments(problem, [batch] * PASS, chosen, terms, followed))


def _measure_memory(posteriors: Mapping[Way, smidgen.LaplacePosterior]) -> dict[str, int]:
    """Peaks of fits, and of predictions by posteriors that were stored."""
    memory = {}
    for work in ("limit", "fit 10 %", "fit 100 %"):
        memory[work] = run_child("bench.cost.memory_side", work)["bytes"]
    with tempfile.TemporaryDirectory() as temporary:
        for way, posterior in posteriors.items():
            folder = Path(temporary) / way
            stored = posterior
            if way == "low-rank":
                stored = posterior.compress(tolerance=TOLERANCE)
            smidgen.save(stored, folder)
            found = run_child("bench.cost.memory_side", f"predict {way}", str(folder))
            memory[f"predict 100 %, {way}"] = found["bytes"]
            print(f"limit: memory of {way}", file=sys.stderr, flush=True)
    return memory


def _describe(
    minilm: FinetunedMiniLM, posteriors: Mapping[Way, smidgen.LaplacePosterior]
) -> dict[str, Any]:
    """Floats, precisions, and how far low-rank variances are from exact ones."""
    exact = posteriors["exact"]
    small = exact.compress(tolerance=TOLERANCE)
    test = minilm.test[:: max(1, len(minilm.test) // 4)]
    variances = {
        way: predict_by(way, posteriors[way], minilm.problem, test)().logit_covariance
        for way in ("exact", "low-rank")
    }
    error = (variances["low-rank"] - variances["exact"]).abs() / variances["exact"].abs()
    return {
        "floats": {
            "full factors": exact.floats,
            "low-rank": small.floats,
            "isotropic": posteriors["isotropic"].floats,
        },
        "floats of low-rank ÷ of full factors": round(small.floats / exact.floats, 5),
        "largest relative error of low-rank variances": float(error.max()),
        "its bound": float(small.variance_error),
        "precisions": {
            way: sorted(set(posteriors[way].precisions.values()))
            for way in ("exact", "isotropic")
        },
    }
