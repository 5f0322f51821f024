"""Many classes: 1,000 beside a training step's passes, and what calibrating ten takes.

A small BERT of four layers, 16 × 32 random tokens, one thousand classes, defaults all the
way: fit and predict over a forward and a backward pass of its loss, weight gradients
included. Ten classes, last layer: CPU seconds to calibrate on 2,000 rows, beside those to
predict them.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

import smidgen
from bench.measuring import Tokens, interleaved, make_tokens, median_ratio
from smidgen.errors import SmidgenWarning
from smidgen.runtime.record import Record

CLASSES, BATCH, TOKENS, PASS, ROUNDS = 1000, 16, 32, 4, 5
TEN, ROWS, FEATURES, HIDDEN = 10, 2000, 64, 128
TARGETS = {"fit": 5, "predict": 5, "calibrate, CPU seconds": 3}


def run() -> Record:
    """Measure both and return the record."""
    # Defaults say in a warning what they leave out of many classes.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmidgenWarning)
        results = {
            f"{CLASSES:,} classes / forward and backward": _many(),
            f"{TEN} classes, last layer, {ROWS:,} rows, CPU seconds": _ten(),
        }
    config = {
        "model": "BERT, 4 layers, hidden 256",
        "batch": BATCH,
        "tokens": TOKENS,
        "batches in a pass": PASS,
        "rounds": ROUNDS,
        "threads": torch.get_num_threads(),
        "ten classes": f"MLP {FEATURES}-{HIDDEN}-{TEN}",
        "targets": TARGETS,
    }
    return Record("bench", config, results, seed=0)


def small_bert(classes: int, layers: int = 4, hidden: int = 256, **more: int) -> nn.Module:
    """Build a BERT with weights drawn from seed 0, in evaluation mode."""
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 4}
    config = BertConfig(
        **{"intermediate_size": 4 * hidden, **sizes, **more}, num_labels=classes
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return BertForSequenceClassification(config).eval()


def _many() -> dict[str, float]:
    model = small_bert(CLASSES)
    generator = torch.Generator().manual_seed(0)
    batches = [make_tokens(BATCH, TOKENS, generator, CLASSES) for _ in range(PASS)]
    subsets = {
        "10 %": smidgen.select.sparse_kfac(model, percent=10),
        "last layer": smidgen.select.last_layer(model),
    }
    sides: dict[str, Callable[[], Any]] = {"passes": lambda: _train(model, batches)}
    for name, subset in subsets.items():
        posterior = smidgen.fit.laplace(model, batches, subset, progress=False)
        sides[f"fit, {name}"] = lambda subset=subset: smidgen.fit.laplace(
            model, batches, subset, progress=False
        )
        sides[f"predict, {name}"] = lambda posterior=posterior: smidgen.predict_batches(
            posterior, model, batches, progress=False
        )
    times = interleaved(sides, rounds=ROUNDS)
    passes = times.pop("passes")
    return {name: median_ratio(found, passes) for name, found in times.items()}


def _train(model: nn.Module, batches: list[Tokens]) -> None:
    """Forward and backward of a training step; no step is taken."""
    for batch in batches:
        loss = model(**batch).loss
        torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])


def _ten() -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, TEN)
        )
    inputs = torch.randn(ROWS, FEATURES, generator=generator)
    with torch.no_grad():
        # Labels that the logits, made as large as a trained model's, have to do with.
        model[-1].weight *= 8
        logits = model(inputs)
        targets = torch.multinomial((logits / 2).softmax(-1), 1, generator=generator)[:, 0]
    batches = list(zip(inputs.split(100), targets.split(100), strict=True))
    posterior = smidgen.fit.laplace(
        model, batches, smidgen.select.last_layer(model), progress=False
    )
    sides: dict[str, Callable[[], Any]] = {
        "calibrate": lambda: smidgen.calibrate(posterior, model, batches, progress=False),
        "predict": lambda: smidgen.predict_batches(
            posterior, model, batches, progress=False
        ),
    }
    times = interleaved(sides, rounds=3, warm=1, clock=time.process_time)
    return {name: round(median(found), 3) for name, found in times.items()}
