"""How fit and prediction grow with width, depth, length, classes and percentage.

All but the last on small BERTs with random weights, all affine layers stochastic at
precision 1, beside the limit of the same batch. A fit here is the whole of it,
decompositions included. A slope is that of a straight line through log time against log
size. The percentage is that of MiniLM, fine-tuned, at calibrated precisions.
"""

from __future__ import annotations

import gc
import math
import sys
import warnings
from collections.abc import Callable, Mapping
from statistics import linear_regression, median
from typing import Any

import torch
from torch import nn

import smidgen
from bench.cost.classes import small_bert
from bench.cost.limit import pass_over
from bench.cost.posteriors import TOLERANCE, calibrated_posteriors, predict_by
from bench.measuring import LIMIT, interleaved, make_tokens, median_ratio, run_limit
from bench.models.sentiment_minilm import load_finetuned_minilm
from smidgen.errors import SmidgenWarning
from smidgen.runtime.record import Record

ROUNDS, BATCH, FIT_BATCHES = 3, 16, 8
WIDTHS = (128, 256, 512, 1024, 2048)
DEPTHS = (1, 2, 4, 8)
LENGTHS = (16, 32, 64, 128, 256)
CLASSES = (2, 10, 50, 100, 1000)
PERCENTS = (1, 3, 10, 30, 100)
# Width is measured where it matters, so slopes leave the smallest networks out.
SLOPE_FROM = {"width": 512, "depth": 1, "length": 16, "classes": 2}


def run() -> Record:
    """Measure all five and return the record."""
    grown: dict[str, dict[int, dict[str, float]]] = {
        "width": {
            width: _measure(
                small_bert(2, layers=1, hidden=width, intermediate_size=2 * width), 16
            )
            for width in WIDTHS
        },
        "depth": {depth: _measure(small_bert(2, layers=depth), 32) for depth in DEPTHS},
        "length": {length: _measure(small_bert(2, 2), length) for length in LENGTHS},
        "classes": {count: _measure(small_bert(count, 2), 16, count) for count in CLASSES},
    }
    results: dict[str, Any] = {
        name: {
            "seconds": {str(size): found for size, found in sizes.items()},
            "slopes": _slopes(sizes, SLOPE_FROM[name]),
        }
        for name, sizes in grown.items()
    }
    results["percent"] = {str(percent): found for percent, found in _percents().items()}
    config = {
        "batch": BATCH,
        "batches of a fit": FIT_BATCHES,
        "rounds": ROUNDS,
        "threads": torch.get_num_threads(),
        "limit": LIMIT,
        "tolerance of low-rank": TOLERANCE,
        "models": {
            "width": "BERT, 1 layer, intermediate twice the width, 16 tokens",
            "depth": "BERT, hidden 256, 32 tokens",
            "length": "BERT, 2 layers, hidden 256",
            "classes": "BERT, 2 layers, hidden 256, 16 tokens, defaults",
            "percent": "MiniLM, fine-tuned, 64 tokens, time / limit; 'fit' is the pass",
        },
        "slopes from": SLOPE_FROM,
    }
    return Record("bench", config, results, seed=0)


def _measure(model: nn.Module, tokens: int, classes: int = 2) -> dict[str, float]:
    """Median seconds of the limit of one batch, of a fit and of one batch's prediction."""
    print(f"growth: {model.config.hidden_size} wide, {tokens}", file=sys.stderr, flush=True)
    generator = torch.Generator().manual_seed(0)
    batches = [make_tokens(BATCH, tokens, generator, classes) for _ in range(FIT_BATCHES)]
    problem = smidgen.Problem(model, smidgen.Categorical(classes))
    subset = smidgen.select.sparse_kfac(model, percent=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmidgenWarning)
        fitted = smidgen.fit.laplace(problem, batches, subset, progress=False)
        plain = smidgen.fit.isotropic(problem, subset)
        sides: dict[str, Callable[[], Any]] = {
            "limit": lambda: run_limit(model, batches[0]),
            "fit": lambda: smidgen.fit.laplace(problem, batches, subset, progress=False),
            "low-rank": predict_by("low-rank", fitted, problem, batches[:1]),
            "isotropic": predict_by("isotropic", plain, problem, batches[:1]),
        }
        times = interleaved(sides, rounds=ROUNDS)
    del sides, fitted, plain
    gc.collect()
    return {name: round(median(found), 5) for name, found in times.items()}


def _slopes(sizes: Mapping[int, Mapping[str, float]], least: int) -> dict[str, float]:
    kept = {size: found for size, found in sizes.items() if size >= least}
    logs = [math.log(size) for size in kept]
    return {
        side: round(
            linear_regression(logs, [math.log(f[side]) for f in kept.values()]).slope, 2
        )
        for side in next(iter(kept.values()))
    }


def _percents() -> dict[float, dict[str, float]]:
    """Time over the limit of a fit's pass and of every way to predict."""
    minilm = load_finetuned_minilm()
    batch = make_tokens(BATCH, 64, torch.Generator().manual_seed(0))
    sides: dict[str, Callable[[], Any]] = {"limit": lambda: run_limit(minilm.model, batch)}
    for percent in PERCENTS:
        posteriors = calibrated_posteriors(minilm, percent)
        subset = posteriors["exact"].subset
        sides[f"{percent} fit"] = pass_over(minilm.problem, subset, [batch])
        for way, posterior in posteriors.items():
            sides[f"{percent} {way}"] = predict_by(way, posterior, minilm.problem, [batch])
    times = interleaved(sides, rounds=2 * ROUNDS + 1)
    names = ("fit", "exact", "low-rank", "isotropic")
    return {
        percent: {
            name: median_ratio(times[f"{percent} {name}"], times["limit"]) for name in names
        }
        for percent in PERCENTS
    }
