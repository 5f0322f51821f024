"""Do weight samples do better than the linearised predictive? On some of our tasks.

    .venv/bin/python -m docs.build.weight_samples --data FOLDER --cache FOLDER --tasks SST-2

Sparse-KFAC at 10 %, one precision. For samples, precision (the linearised choice, and up to
four decades above it) and temperature are chosen by the NLL of 8 samples on 300
validation examples; the linearised predictive is tuned on the same 300. Both are scored on
the test data, samples with 16 draws. A record for each under `results/weight-samples/`.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import torch
from docs.build.finetuned import TASKS, Finetuned, finetuned

import smidgen
from smidgen import evaluate, fit
from smidgen.fit.calibration.samples import held_out
from smidgen.runtime.record import Record

STEPS = (1.0, 10.0, 100.0, 1000.0, 10_000.0)
HELD, DRAWS, TEST_DRAWS = 300, 8, 16


def compared(made: Finetuned) -> dict[str, Any]:
    """Tune and score both ways of predicting."""
    problem = smidgen.Problem(made.model, smidgen.Categorical(2))
    subset = smidgen.select.sparse_kfac(made.model, percent=10)
    some = made.task.validation.take(range(HELD))
    posterior = fit.laplace(problem, made.loader(made.task.train), subset)
    linear = fit.tune_precision(posterior, problem, made.loader(some), scope="scalar")
    assert isinstance(linear.precision, float)
    tried = []
    for step in STEPS:
        own = linear.with_precision(linear.precision * step)
        held = held_out(problem, own, made.loader(some), samples=DRAWS)
        scale, nll = held.best(held.outputs)
        tried.append((nll, own.with_temperature(scale)))
    best = min(tried, key=lambda pair: pair[0])[1]
    test = made.loader(made.task.test)
    outputs, targets = smidgen.point_outputs(problem, test)
    assert targets is not None
    tuning = linear.tuning
    assert tuning is not None
    found = {
        "temperature": smidgen.outputs.predictive.CategoricalPredictive.from_logits(
            outputs, tuning.map_scale
        ),
        "linearised": smidgen.predict_batches(linear, problem, test),
        "weight samples": smidgen.predict_samples_batches(
            best, problem, test, samples=TEST_DRAWS
        ),
    }
    losses = {name: evaluate.nll(each, targets) for name, each in found.items()}
    return {
        "methods": {
            name: {
                "nll": float(losses[name].mean()),
                "ece": evaluate.expected_calibration_error(each, targets),
            }
            for name, each in found.items()
        },
        "differences": {
            "weight samples to linearised": evaluate.paired_difference(
                losses["weight samples"], losses["linearised"]
            ).to_dict(),
            "weight samples to temperature": evaluate.paired_difference(
                losses["weight samples"], losses["temperature"]
            ).to_dict(),
        },
        "linearised": {"precision": linear.precision, "temperature": linear.temperature},
        "samples": {"precision": best.precision, "temperature": best.temperature},
        "validation_nll": [nll for nll, _ in tried],
    }


def main() -> None:
    """Run the tasks and seeds that have no record yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=["SST-2"], choices=TASKS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=Path("results/weight-samples"))
    given = parser.parse_args()
    warnings.simplefilter("ignore", smidgen.SmidgenWarning)
    for name in given.tasks:
        for seed in given.seeds:
            target = given.out / f"{name.lower()}-seed{seed}.json"
            if target.exists():
                continue
            made = finetuned(name, seed, given.data, given.cache)
            config = {
                "task": name,
                "model": "all-MiniLM-L6-v2",
                "percent": 10,
                "validation": HELD,
                "draws": [DRAWS, TEST_DRAWS],
                "steps": list(STEPS),
                "threads": torch.get_num_threads(),
            }
            record = Record("weight-samples", config, compared(made), seed=seed)
            print(f"wrote {record.save(target)}", flush=True)


if __name__ == "__main__":
    main()
