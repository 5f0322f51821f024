"""One text, one image, one batch: prediction beside the model's own forward pass.

All is warm: the posterior has predicted before with this model. Each posterior takes turns
with the forward pass alone, so that each finds the caches as the other left them. A ratio
and a difference are medians over rounds, of both sides of the same round. Every call of
`predict` makes sure that the caller's model is what it was; a stream, `predict_batches` of
one text or image after another, does that once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import sub
from statistics import median
from typing import Any

import torch
from torch import nn
from transformers import DistilBertConfig, DistilBertForSequenceClassification

import smidgen
from bench.measuring import Tokens, interleaved, make_tokens, median_ratio
from bench.models.sentiment_minilm import load_finetuned_minilm
from smidgen.runtime.record import Record
from smidgen.types import Batch

TOKENS, IMAGE, CLASSES = 12, (1, 28, 28), 10
BATCH, BATCH_TOKENS = 16, 64
TEXT, PICTURE, TEXTS = "one text", "one image", f"{BATCH} texts, DistilBERT"
RATIO, MORE = "predict / forward", "predict − forward, ms"
# A round of one text takes milliseconds, of many at DistilBERT's size a second.
ROUNDS = {TEXT: 200, PICTURE: 200, TEXTS: 25}
WARM = {TEXT: 20, PICTURE: 20, TEXTS: 2}
LAST, STREAM, STREAMED = "last layer", "last layer, in a stream", 20
TARGETS = {TEXT: {RATIO: 1.2}, PICTURE: {MORE: 0.3}, TEXTS: {RATIO: 1.05}}


def run() -> Record:
    """Measure all three and return the record."""
    results = {TEXT: _one_text(), PICTURE: _one_image(), TEXTS: _many_texts()}
    config = {
        "models": {
            TEXT: f"all-MiniLM-L6-v2, fine-tuned on the demo's sentences, {TOKENS} tokens",
            PICTURE: f"two convolutions and a linear layer, random weights, "
            f"{'×'.join(map(str, IMAGE))} pixels, {CLASSES} classes",
            TEXTS: f"DistilBERT's size, random weights, {BATCH_TOKENS} tokens, two classes",
        },
        "rounds": ROUNDS,
        "inputs of a stream": STREAMED,
        "warm rounds": WARM,
        "threads": torch.get_num_threads(),
        "forward": "the model's own pass of the same batch, without gradients",
        "targets": {case: {LAST: target} for case, target in TARGETS.items()},
    }
    return Record("bench", config, results, seed=0)


def small_cnn() -> nn.Module:
    """Build a network of two convolutions and a linear layer, weights from seed 0."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(IMAGE[0], 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (IMAGE[1] // 4) * (IMAGE[2] // 4), CLASSES),
        ).eval()


def _one_text() -> dict[str, dict[str, float]]:
    minilm = load_finetuned_minilm()
    model, problem = minilm.model, minilm.problem
    text = _unlabelled(make_tokens(1, TOKENS, torch.Generator().manual_seed(0)))
    fit = smidgen.fit
    few = smidgen.select.sparse_kfac(model, percent=10)
    every = smidgen.select.sparse_kfac(model, percent=100)
    last = smidgen.select.last_layer(model)
    fitted = {
        LAST: fit.laplace(problem, minilm.train, last, progress=False),
        "Sparse-KFAC 10 %": fit.laplace(problem, minilm.train, few, progress=False),
        "isotropic, all layers": fit.isotropic(problem, every),
    }
    posteriors = {
        name: smidgen.calibrate(each, problem, minilm.validation, progress=False)
        for name, each in fitted.items()
    }
    return _beside_forward(TEXT, problem, lambda: model(**text), posteriors, text)


def _one_image() -> dict[str, dict[str, float]]:
    model = small_cnn()
    problem = smidgen.Problem(model, smidgen.Categorical(CLASSES))
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(100, *IMAGE, generator=generator)
    labels = torch.randint(0, CLASSES, (100,), generator=generator)
    # Labels at random have no precision to choose: it changes nothing of the cost.
    posterior = smidgen.fit.laplace(
        problem, [(images, labels)], smidgen.select.last_layer(model), progress=False
    )
    image = images[:1]
    return _beside_forward(PICTURE, problem, lambda: model(image), {LAST: posterior}, image)


def _many_texts() -> dict[str, dict[str, float]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = DistilBertForSequenceClassification(DistilBertConfig(num_labels=2)).eval()
    problem = smidgen.Problem(model, smidgen.Categorical(2))
    labelled = make_tokens(BATCH, BATCH_TOKENS, torch.Generator().manual_seed(0))
    posterior = smidgen.fit.laplace(
        problem, [labelled], smidgen.select.last_layer(model), progress=False
    )
    texts = _unlabelled(labelled)
    return _beside_forward(TEXTS, problem, lambda: model(**texts), {LAST: posterior}, texts)


def _unlabelled(batch: Tokens) -> Tokens:
    return {name: each for name, each in batch.items() if name != "labels"}


def _beside_forward(
    case: str,
    problem: smidgen.Problem,
    forward: Callable[[], Any],
    posteriors: Mapping[str, smidgen.LaplacePosterior],
    batch: Batch,
) -> dict[str, dict[str, float]]:
    """Every posterior in turns with the forward pass alone."""
    found = {}
    for name, posterior in posteriors.items():
        sides: dict[str, Callable[[], Any]] = {
            "forward": torch.no_grad()(forward),
            "predict": lambda posterior=posterior: smidgen.predict(
                posterior, problem, batch
            ),
        }
        times = interleaved(sides, rounds=ROUNDS[case], warm=WARM[case])
        found[name] = summarise_turns(times["forward"], times["predict"])
    if case != TEXTS:
        found[STREAM] = _stream_beside_forward(
            case, problem, forward, posteriors[LAST], batch
        )
    return found


def _stream_beside_forward(
    case: str,
    problem: smidgen.Problem,
    forward: Callable[[], Any],
    posterior: smidgen.LaplacePosterior,
    batch: Batch,
) -> dict[str, float]:
    """The same for each of many inputs that are predicted one after another."""
    sides: dict[str, Callable[[], Any]] = {
        "forward": torch.no_grad()(lambda: [forward() for _ in range(STREAMED)]),
        "predict": lambda: smidgen.predict_batches(
            posterior, problem, [batch] * STREAMED, progress=False
        ),
    }
    rounds, warm = (max(1, each[case] // STREAMED) for each in (ROUNDS, WARM))
    times = interleaved(sides, rounds=rounds, warm=warm)
    each = {name: [t / STREAMED for t in found] for name, found in times.items()}
    return summarise_turns(each["forward"], each["predict"])


def summarise_turns(forward: list[float], predict: list[float]) -> dict[str, float]:
    """Medians in milliseconds, and those of ratio and difference of the same round."""
    return {
        "forward, ms": round(1000 * median(forward), 3),
        "predict, ms": round(1000 * median(predict), 3),
        RATIO: median_ratio(predict, forward),
        MORE: round(1000 * median(map(sub, predict, forward)), 3),
    }
