"""A posterior over LoRA's adapters: SmolLM2 beside a training step, Llama-2-7B on paper.

SmolLM2-135M with LoRA r = 8 on queries and values, fine-tuned on short reviews. Fit and
predict are over a forward pass and a backward pass to the adapters of the same batches, on
one thread or more as it comes. Test NLL is that of factors cut to the default rank and of
full ones, each calibrated on the same rows. Llama-2-7B is planned without its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import smidgen
from bench.measuring import interleaved, median_ratio
from bench.models.sentiment_lora import RANK, ROWS, TARGETS, Sentiment, load_sentiment
from smidgen.runtime.record import Record

PASS, ROUNDS = 8, 3
# Rows of training data that the factors are made of.
FITTED = 160
LLAMA = {"batch": 1, "tokens": 512}
GOALS = {
    "floats": 2_000_000,
    "fit / passes": 1.3,
    "predict / passes": 1.2,
    "test NLL, default − full": 0.002,
    "Llama-2-7B, stored bytes": 300_000_000,
}


def run() -> Record:
    """Measure SmolLM2, plan Llama, and return the record."""
    sentiment = load_sentiment()
    posteriors = {
        "default": _fit(sentiment, FITTED),
        "full": _fit(sentiment, FITTED, rank=FULL),
    }
    results = {
        "floats": {name: each.floats for name, each in posteriors.items()},
        **_times(sentiment, posteriors),
        **_scores(sentiment, posteriors),
        "Llama-2-7B": _plan_llama(),
    }
    config = {
        "model": "SmolLM2-135M-Instruct (Q4_1 weights in fp32)",
        "adapters": f"LoRA r = {RANK} on {' and '.join(TARGETS)}",
        "weights": sentiment.subset.size,
        "data": sentiment.data,
        "rows": {**ROWS, "fitted": FITTED},
        "batches in a pass": PASS,
        "rounds": ROUNDS,
        "threads": torch.get_num_threads(),
        "passes": "a forward pass and a backward pass to the adapters, of the same batches",
        "targets": GOALS,
    }
    return Record("bench", config, results, seed=0)


# No side of an adapter is wider.
FULL = 576


def _fit(
    sentiment: Sentiment, rows: int, rank: int | None = None
) -> smidgen.LaplacePosterior:
    # Every third batch: they are sorted by length, and all lengths should be there.
    batches = sentiment.train[:: max(1, 16 * len(sentiment.train) // rows)]
    settings = smidgen.fit.LaplaceSettings(rank=rank)
    return smidgen.fit.laplace(
        sentiment.problem, batches, sentiment.subset, settings=settings, progress=False
    )


def _times(
    sentiment: Sentiment, posteriors: dict[str, smidgen.LaplacePosterior]
) -> dict[str, Any]:
    problem, subset = sentiment.problem, sentiment.subset
    middle = len(sentiment.train) // 2
    batches = sentiment.train[middle : middle + PASS]
    sides: dict[str, Callable[[], Any]] = {"passes": lambda: _train(problem, batches)}
    for name, posterior in posteriors.items():
        settings = smidgen.fit.LaplaceSettings(rank=None if name == "default" else FULL)
        sides[f"fit, {name}"] = lambda settings=settings: smidgen.fit.laplace(
            problem, batches, subset, settings=settings, progress=False
        )
        sides[f"predict, {name}"] = lambda posterior=posterior: smidgen.predict_batches(
            posterior, problem, batches, progress=False
        )
    times = interleaved(sides, rounds=ROUNDS)
    passes = times.pop("passes")
    return {"time / passes": {n: median_ratio(found, passes) for n, found in times.items()}}


def _train(problem: smidgen.Problem, batches: list[dict[str, Tensor]]) -> None:
    """Forward, and backward to the adapters, as a training step does; no step is taken."""
    adapters = [p for n, p in problem.model.named_parameters() if "lora_" in n]
    trained = [p.requires_grad for p in adapters]
    for adapter in adapters:
        adapter.requires_grad_()
    for batch in batches:
        logits = problem.forward(problem.model, batch)
        loss = nn.functional.cross_entropy(logits, batch["labels"])
        torch.autograd.grad(loss, adapters)
    for adapter, before in zip(adapters, trained, strict=True):
        adapter.requires_grad_(before)


def _scores(
    sentiment: Sentiment, posteriors: dict[str, smidgen.LaplacePosterior]
) -> dict[str, Any]:
    """Test NLL and accuracy of MAP and of both, calibrated."""
    problem = sentiment.problem
    logits, targets = smidgen.point_outputs(problem, sentiment.test, progress=False)
    nll = {"MAP": nn.functional.cross_entropy(logits, targets).item()}
    precisions = {}
    for name, posterior in posteriors.items():
        calibrated = smidgen.calibrate(
            posterior, problem, sentiment.validation, progress=False
        )
        found = smidgen.predict_batches(calibrated, problem, sentiment.test, progress=False)
        nll[name] = nn.functional.nll_loss(found.log_probs, targets).item()
        precisions[name] = sorted(set(calibrated.precisions.values()))
    return {
        "test accuracy": round((logits.argmax(-1) == targets).double().mean().item(), 4),
        "test NLL": {name: round(value, 5) for name, value in nll.items()},
        "test NLL, default − full": round(nll["default"] - nll["full"], 5),
        "precisions": precisions,
    }


def _plan_llama() -> dict[str, Any]:
    """Plan the same adapters on Llama-2-7B: shapes alone, no weights."""
    config = LlamaConfig(
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=32,
        num_attention_heads=32,
    )
    adapters = LoraConfig(r=RANK, target_modules=list(TARGETS))
    with torch.device("meta"):
        model = get_peft_model(LlamaForCausalLM(config), adapters).eval()

    def outputs(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return model(**batch, use_cache=False, logits_to_keep=1).logits[:, -1, :2]

    shape = (LLAMA["batch"], LLAMA["tokens"])
    planned = smidgen.plan(
        smidgen.Problem(model, smidgen.Categorical(2), forward=outputs),
        subset=smidgen.select.named(model, ["*lora_A*", "*lora_B*"]),
        batch={"input_ids": torch.zeros(shape, dtype=torch.int64)},
    )
    cost = planned.chosen.cost
    return {
        "weights": cost.weights,
        "stored bytes": cost.stored_bytes,
        "fit peak bytes": cost.fit_peak_bytes,
        "predict peak bytes": cost.predict_peak_bytes,
    }
