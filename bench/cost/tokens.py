"""Next-token uncertainty of SmolLM2 over a document, beside the model's own forward pass.

Only the output layer is stochastic, so no backward pass is made. Both sides compute the logits
of the same tokens over the whole vocabulary; smidgen follows the five likeliest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import smidgen
from bench.measuring import interleaved, median_ratio
from smidgen.integrations.answers.next_tokens import (
    make_document_batches,
    make_next_token_problem,
)
from smidgen.outputs.links import Link
from smidgen.runtime.record import Record
from smidgen_studies.methods.fetched_models import load_smollm2

TOP, ROUNDS, TOKENS = 5, 5, 1024
# A text that every clone has.
DOCUMENT = Path(__file__).parents[2] / "LICENSE"
TARGET = 3.0


def run() -> Record:
    """Time both sides in turn, and return the record."""
    model, tokenizer = load_smollm2()
    words = DOCUMENT.read_text(encoding="utf-8")
    ids = tokenizer(words, verbose=False)["input_ids"][:TOKENS]
    text = tokenizer.decode(ids)
    problem = make_next_token_problem(model)
    posterior = smidgen.fit.isotropic(problem, smidgen.select.last_layer(problem))
    results: dict[str, Any] = {}
    for window in (256, 512):
        batches = make_document_batches(text, tokenizer, window=window)
        times = interleaved(
            {
                "forward": lambda batches=batches: _forward(model, batches),
                "predict": lambda batches=batches: smidgen.predict_batches(
                    posterior, problem, batches, link=Link(top=TOP), progress=False
                ),
            },
            rounds=ROUNDS,
        )
        ratio = median_ratio(times["predict"], times["forward"])
        results[f"predict / forward, window {window}"] = ratio
    config = {
        "model": "SmolLM2-135M-Instruct (Q4_1 weights in fp32)",
        "stochastic": "the output layer, isotropic",
        "document": f"the first {len(ids)} tokens of LICENSE",
        "top": TOP,
        "rounds": ROUNDS,
        "threads": torch.get_num_threads(),
        "forward": "the model's own forward pass of the same windows, all logits",
        "target": TARGET,
    }
    return Record("bench", config, results, seed=0)


@torch.no_grad()
def _forward(model: torch.nn.Module, batches: list[dict[str, Tensor]]) -> None:
    for batch in batches:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        _ = model(**inputs, use_cache=False).logits
