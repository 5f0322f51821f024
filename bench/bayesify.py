"""`bayesify` against fitting and calibrating one posterior by hand, in one run, interleaved.

MiniLM fine-tuned on the demo's sentences. *By hand* is `fit.laplace` on Sparse-KFAC's 10 % and
`calibrate`: two passes, one posterior. `bayesify` tries six candidates in two passes and scores
them in five folds.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import torch

import smidgen
from bench.measuring import interleaved, median_ratio
from bench.models.sentiment_minilm import load_finetuned_minilm
from smidgen import fit, select
from smidgen.runtime.record import Record

# Every so many batches, so that all lengths are there: a few hundred rows of each.
TRAIN, HELD_OUT, ROUNDS, PERCENT = 24, 24, 3, 10.0


def run() -> Record:
    """Time both, and note what was tried and kept."""
    torch.set_num_threads(1)
    tuned = load_finetuned_minilm()
    train, held_out = _spread(tuned.train, TRAIN), _spread(tuned.validation, HELD_OUT)
    made: dict[str, Any] = {}

    def by_hand() -> None:
        subset = select.sparse_kfac(tuned.model, percent=PERCENT)
        posterior = fit.laplace(tuned.problem, train, subset, progress=False)
        made["hand"] = smidgen.calibrate(posterior, tuned.problem, held_out, progress=False)

    def in_one_call() -> None:
        made["call"] = smidgen.bayesify(tuned.problem, train, held_out, progress=False)

    times = interleaved({"hand": by_hand, "call": in_one_call}, rounds=ROUNDS)
    choice = made["call"].choice
    results = {
        "bayesify / fit and calibrate 10 % alone": median_ratio(
            times["call"], times["hand"]
        ),
        "seconds": {name: round(median(taken), 2) for name, taken in times.items()},
        "choice": choice.describe(),
    }
    config = {
        "model": "all-MiniLM-L6-v2, fine-tuned on the demo's sentences",
        "train rows": sum(len(batch["labels"]) for batch in train),
        "held-out rows": sum(len(batch["labels"]) for batch in held_out),
        "percent by hand": PERCENT,
        "rounds": ROUNDS,
        "threads": torch.get_num_threads(),
    }
    return Record("bench", config, results, seed=0)


def _spread(batches: list[Any], count: int) -> list[Any]:
    """Take some batches, from the shortest to the longest."""
    return batches[:: max(1, len(batches) // count)][:count]
