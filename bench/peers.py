"""smidgen against laplace-torch 0.3: fit and prediction, time and memory, and the answers.

Every method runs in a process of its own (`bench.peer_side`). Its times are in forward
passes measured there, its memory is what it takes beyond the model. Both sides have all
affine layers with the exact GGN and KFAC-expand in float32, two classes and a probit link;
laplace-torch computes Jacobians of all weights, whatever is asked of them.
"""

from __future__ import annotations

import sys
from importlib import metadata
from statistics import median
from typing import Any

import torch

from bench.measuring import run_child
from bench.peer_side import SETTINGS, SUBNETWORK, SUBNETWORK_ROWS
from smidgen.curvature.operators import STRUCTURES
from smidgen.runtime.record import Record

# What is compared; ours first.
PAIRS = {
    "KFAC, smidgen at 10 %": ("ours 10 %", "theirs all"),
    "KFAC, smidgen at 100 %": ("ours 100 %", "theirs all"),
    "KFAC, smidgen at 100 %, reduce": ("ours 100 %, reduce", "theirs all"),
    "KFAC, smidgen at 100 %, low-rank": ("ours 100 %, low-rank", "theirs all"),
    "KFAC, smidgen isotropic at 100 %": ("ours 100 %, isotropic", "theirs all"),
    "last layer": ("ours last layer", "theirs last layer"),
    "subnetwork": ("ours subnetwork", "theirs subnetwork"),
}
APART = ("ours weights", "ours biases")
CHEAP = ("ours 10 %", "ours last layer", "theirs last layer")
TARGETS = {
    "predict, smidgen at 10 %": 100,
    "predict, smidgen at 100 %": 30,
    "predict bytes, smidgen at 10 %": 8,
    "fit, DistilBERT, smidgen at 100 %": 2,
}


def run(quick: bool = False) -> Record:
    """Measure all methods and return the record; `quick` shows only that it works."""
    first, second = (
        ("small BERT", "small DistilBERT") if quick else ("MiniLM", "DistilBERT")
    )
    pairs = {
        name: pair
        for name, pair in PAIRS.items()
        if name != "subnetwork" or "full" in STRUCTURES
    }
    results, threads = {}, 0
    for model in (first, second):
        compared = {k: v for k, v in pairs.items() if model == first or k != "subnetwork"}
        wanted = dict.fromkeys(each for pair in compared.values() for each in pair)
        # The second model's fits take minutes: no second round, no third and fourth fit.
        more = [*APART, *CHEAP] if model == first else []
        found = _measured(model, [*wanted, *more])
        threads = found["ours 10 %"]["threads"]
        results[model] = _summary(found, compared)
    config = {
        "peer": "laplace-torch " + metadata.version("laplace-torch"),
        "curvlinops": metadata.version("curvlinops-for-pytorch"),
        "models": {name: _described(name) for name in results},
        "threads": threads,
        "structure": "KFAC-expand of the exact GGN, all affine layers, float32; 'reduce' is "
        "smidgen's default, 'isotropic' has no curvature and no fit",
        "subnetwork": f"full GGN of {SUBNETWORK} weights of largest magnitude, fitted to "
        f"and predicting {SUBNETWORK_ROWS} rows"
        if "subnetwork" in pairs
        else "not measured: there is no structure 'full' yet",
        "time": "in forward passes of the same batches in the same process",
        "memory": "peak resident bytes above those with the model loaded",
        "repetitions": "laplace-torch on all weights or a subnetwork: one; all fits: one "
        "or two; else the median of all repeats",
        "targets of peer_over_smidgen": TARGETS,
    }
    return Record("bench", config, results, seed=0)


def _described(name: str) -> dict[str, int]:
    setting = SETTINGS[name]
    return {
        "fit rows": setting.fit_rows,
        "fit batches": setting.passes,
        "predict rows": setting.predict_rows,
        "tokens": setting.tokens,
    }


def _measured(model: str, methods: list[str]) -> dict[str, dict[str, Any]]:
    """Run the methods in their order, and take medians where one comes twice."""
    found: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
    for method in methods:
        print(f"peers: {model}, {method}", file=sys.stderr, flush=True)
        found[method].append(run_child("bench.peer_side", model, method))
    return {
        method: {
            key: each[0][key]
            if key == "variance"
            else type(each[0][key])(median(one[key] for one in each))
            for key in each[0]
        }
        for method, each in found.items()
    }


def _summary(
    found: dict[str, dict[str, Any]], compared: dict[str, tuple[str, str]]
) -> dict[str, Any]:
    measures = ("fit", "predict", "fit bytes", "predict bytes")
    methods = {
        method: {
            f"{key} / forward" if "bytes" not in key else key: round(each[key], 3)
            for key in measures
        }
        for method, each in found.items()
        if method not in APART
    }
    ratios = {
        name: {key: round(found[peer][key] / found[our][key], 3) for key in measures}
        for name, (our, peer) in compared.items()
    }
    summary = {
        "weights": next(iter(found.values()))["weights"],
        "peer_over_smidgen": ratios,
        "methods": methods,
    }
    if APART[0] in found:
        # The prior is independent and so are the blocks: variances add up.
        ours = sum(torch.tensor(found[each]["variance"]) for each in APART)
        summary["relative difference of logit covariances, weights and biases apart"] = (
            _distance(ours, found["theirs all"]["variance"])
        )
    if "subnetwork" in compared:
        ours, theirs = (found[each]["variance"] for each in compared["subnetwork"])
        summary["relative difference of logit covariances, subnetwork"] = _distance(
            torch.tensor(ours), theirs
        )
    return summary


def _distance(ours: torch.Tensor, theirs: list[Any]) -> float:
    expected = torch.tensor(theirs)
    return float((ours - expected).abs().max() / expected.abs().max())
