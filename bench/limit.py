"""Fit and predict against the limit: a bare forward and activation-only backward pass.

MiniLM with a two-class head, one batch of 16 × 64 tokens, full or padded. The limit runs
the same model on the same batch without any tap. Every round runs all sides once; a ratio
is the median over rounds of one side's time over its limit's of the same round. Runs differ
by a few percent.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import truediv
from statistics import median
from typing import Any

import torch
from torch.func import functional_call

import smidgen
from bench.measuring import interleaved, minilm
from smidgen.curvature.kronecker import KroneckerAccumulator
from smidgen.curvature.taps import tapped
from smidgen.posterior.output_covariance import output_moments
from smidgen.runtime.record import Record
from smidgen.weights.blocks import find_blocks

BATCH, TOKENS, PASS, ROUNDS, WARM = 16, 64, 4, 9, 1
PRECISIONS = 21


def run() -> Record:
    """Measure all sides and return the record."""
    generator = torch.Generator().manual_seed(0)
    model, batch = minilm(BATCH, TOKENS, generator)
    lengths = torch.linspace(TOKENS // 4, TOKENS, BATCH).long()
    padded = {**batch, "attention_mask": (torch.arange(TOKENS) < lengths[:, None]).long()}
    problem = smidgen.Problem(model).with_likelihood(smidgen.Categorical(2))
    sides: dict[str, Callable[[], Any]] = {
        "limit": lambda: [_limit(model, batch) for _ in range(PASS)],
        "padded limit": lambda: [_limit(model, padded) for _ in range(PASS)],
        "forward": lambda: smidgen.point_outputs(problem, [batch] * PASS, progress=False),
    }
    for percent, data, mark in ((10, batch, ""), (10, padded, "padded "), (100, batch, "")):
        subset = smidgen.select.sparse_kfac(model, percent=percent)
        posterior = smidgen.fit.laplace(problem, [data], subset, progress=False)
        sides[f"{mark}fit {percent} %"] = _fit(problem, subset, data)
        sides[f"{mark}predict {percent} %, {PRECISIONS} precisions"] = _predict(
            problem, posterior, data
        )
    times = interleaved(sides, rounds=ROUNDS, warm=WARM)
    limits = {name: "padded limit" if "padded" in name else "limit" for name in times}
    ratios = {
        name: round(median(map(truediv, found, times[limits[name]])), 3)
        for name, found in times.items()
        if "limit" not in name
    }
    config = {
        "model": "all-MiniLM-L6-v2",
        "batch": BATCH,
        "tokens": TOKENS,
        "batches in a pass": PASS,
        "rounds": ROUNDS,
        "threads": torch.get_num_threads(),
        "limit": "one forward pass and one activation-only backward pass, no taps",
    }
    return Record("bench", config, ratios, seed=0)


def _limit(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> None:
    """Forward, then one backward pass to the embeddings' output; no weight gradients."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    embedded = model.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
    inputs = {"inputs_embeds": embedded, "attention_mask": batch["attention_mask"]}
    logits = functional_call(model, weights, (), inputs).logits
    torch.autograd.grad((logits[:, 1] - logits[:, 0]).sum(), embedded)


def _fit(
    problem: smidgen.Problem, subset: smidgen.Subset, batch: Any
) -> Callable[[], None]:
    """A pass without the eigendecompositions, which come once, after all batches."""
    chosen = find_blocks(problem.model, subset)
    sums = KroneckerAccumulator(problem, chosen, "reduce")

    def side() -> None:
        with tapped(problem, chosen) as taps:
            for _ in range(PASS):
                sums.add(taps.run(batch))

    return side


def _predict(
    problem: smidgen.Problem, posterior: smidgen.LaplacePosterior, batch: Any
) -> Callable[[], Any]:
    """A pass over the batches: what is set up once per pass is shared by them."""
    chosen = find_blocks(problem.model, posterior.subset)
    terms = posterior.covariance_terms(chosen, torch.logspace(-4, 6, PRECISIONS))
    followed = posterior.likelihood.choose_directions("quadrature")
    return lambda: list(output_moments(problem, [batch] * PASS, chosen, terms, followed))
