"""Weight samples against as many plain forward passes.

MiniLM with a two-class head, one batch of 16 × 64 tokens, 50 samples of a SWAG posterior on
the layers of its top two layers and the head, and on all layers; a small MLP whose samples run
at once, on 20 batches. Draws included. The median over interleaved rounds of ours over
plain passes of the same round.
"""

from __future__ import annotations

from operator import truediv
from statistics import median
from typing import Any

import torch
from torch import nn

import smidgen
from bench.measuring import interleaved, minilm
from smidgen.runtime.record import Record

BATCH, TOKENS, SAMPLES, ROUNDS = 16, 64, 50, 3
TOP = ["*encoder.layer.4.*dense*", "*encoder.layer.5.*dense*", "*layer.[45].*query*"]
TOP += ["*layer.[45].*key*", "*layer.[45].*value*", "*pooler*", "classifier*"]


def run() -> Record:
    """Measure both sides and return the record."""
    generator = torch.Generator().manual_seed(0)
    model, tokens = minilm(BATCH, TOKENS, generator)
    small = nn.Sequential(
        nn.Linear(13, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 2)
    )
    pairs = (
        torch.randn(BATCH, 13, generator=generator),
        torch.randint(0, 2, (BATCH,), generator=generator),
    )
    sides = {
        "top two layers and head": (model, tokens, smidgen.select.named(model, TOP)),
        "all maps": (model, tokens, smidgen.select.sparse_kfac(model, percent=100)),
        "10 % of rows and columns": (
            model,
            tokens,
            smidgen.select.sparse_kfac(model, percent=10),
        ),
        "MLP 13-50-50-2, all maps": (
            small,
            pairs,
            smidgen.select.sparse_kfac(small, percent=100),
            20,
        ),
    }
    results = {
        f"{SAMPLES} samples / {SAMPLES} passes, {name}": _ratio(*side)
        for name, side in sides.items()
    }
    config = {
        "model": "all-MiniLM-L6-v2",
        "batch": BATCH,
        "tokens": TOKENS,
        "samples": SAMPLES,
        "rounds": ROUNDS,
        "threads": torch.get_num_threads(),
    }
    return Record("bench", config, results, seed=0)


def _ratio(model: nn.Module, batch: Any, subset: smidgen.Subset, batches: int = 1) -> float:
    posterior = smidgen.fit.swag(
        model, [batch], subset, learning_rate=1e-3, steps=4, every=1, progress=False
    )
    sides = {
        "ours": lambda: smidgen.predict_batches(
            posterior, model, [batch] * batches, samples=SAMPLES, progress=False
        ),
        "plain": lambda: smidgen.point_outputs(
            model, [batch] * SAMPLES * batches, progress=False
        ),
    }
    times = interleaved(sides, rounds=ROUNDS)
    return round(median(map(truediv, times["ours"], times["plain"])), 3)
