"""BayesTune's two stages against a plain fine-tuning step of the same model and batch.

MiniLM with a two-class head, 16 × 64 tokens. A plain step is forward, backward, clipping
and fused AdamW over the weights that the other side moves: a chain over the affine layers is
compared with AdamW over those. Every round runs all sides once; a ratio is the median over
rounds of one side's processor time over its plain step's of the same round. Memory is
counted, not measured: numbers kept beside weights and gradients, for each weight.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from operator import truediv
from statistics import median
from typing import Any

import torch
from torch import nn

import smidgen
from bench.measuring import interleaved, minilm
from smidgen.fit.bayestune.chain import Chain, ChainSchedule
from smidgen.fit.bayestune.scale_prior import ScalePrior
from smidgen.fit.bayestune.step import Langevin, StepSettings
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.record import Record
from smidgen.weights.subset import Subset
from smidgen.weights.vector import SubsetVector

BATCH, TOKENS, ROUNDS, WARM = 16, 64, 7, 1
BURN_IN, THIN, FRACTION = 10_000, 10, 0.005


def run() -> Record:
    """Measure all sides and return the record."""
    generator = torch.Generator().manual_seed(0)
    model, batch = minilm(BATCH, TOKENS, generator)
    problem = smidgen.Problem(model, smidgen.Categorical(2)).on_shadow()
    everything = smidgen.select.named(model, "*")
    layers = smidgen.select.named(model, list(smidgen.coverage(model).universe))
    few = smidgen.select.weights(
        model, fraction=FRACTION, by="random", seed=0
    ) | smidgen.select.last_layer(model)
    sparse, sparse_kept = _sparse(problem, few, batch)
    sides: dict[str, Callable[[], Any]] = {"tuning 0.5 %": sparse}
    memory = {"tuning 0.5 %": sparse_kept}
    for name, moving in (("maps", layers), ("all weights", everything)):
        plain, memory["plain"] = _plain(problem, moving, batch)
        sides[f"plain, {name}"] = plain
        steps, vectors = _chain(problem, moving, batch)
        memory[f"chain over {name}"] = vectors
        sides.update({f"{kind}, {name}": side for kind, side in steps.items()})
    with preserve_random_state(model), torch.enable_grad():
        times = interleaved(sides, rounds=ROUNDS, warm=WARM, clock=time.process_time)
    ratios = {
        name: median(map(truediv, found, times[_plain_of(name)]))
        for name, found in times.items()
    }
    # Over all weights, so that the two plain steps can be compared as well.
    ratios["plain, maps"] = median(
        map(truediv, times["plain, maps"], times["plain, all weights"])
    )
    for name in ("maps", "all weights"):
        sample = ratios.pop(f"sample, {name}")
        ratios[f"sampling step, {name}, a sample each {THIN}"] = (
            ratios[f"sampling step, {name}"] + sample / THIN
        )
    results = {
        "time": {
            name: round(each, 3)
            for name, each in ratios.items()
            if name != "plain, all weights"
        },
        "numbers kept for each moving weight": memory,
    }
    config = {
        "model": "all-MiniLM-L6-v2",
        "batch": BATCH,
        "tokens": TOKENS,
        "rounds": ROUNDS,
        "threads": torch.get_num_threads(),
        "plain": "forward, backward, clipping, fused AdamW over the weights that move",
        "time": "of the processor, over the plain step's of the same weights; tuning and "
        "plain over the layers: over the plain step's of all weights",
    }
    return Record("bench", config, results, seed=0)


def _plain_of(side: str) -> str:
    """The plain step that a side is compared with."""
    return "plain, maps" if side.endswith("maps") else "plain, all weights"


def _loss(problem: smidgen.Problem, batch: Any, tensors: Any) -> None:
    outputs = problem.outputs(batch, tensors)
    nn.functional.cross_entropy(outputs, batch["labels"]).backward()


def _plain(
    problem: smidgen.Problem, subset: Subset, batch: Any
) -> tuple[Callable[[], None], float]:
    tensors = SubsetVector(problem.model, subset).tensors
    optimiser = torch.optim.AdamW(tensors.values(), lr=1e-6, fused=True)

    def side() -> None:
        _loss(problem, batch, tensors)
        nn.utils.clip_grad_norm_(list(tensors.values()), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return side, 2.0


def _sparse(
    problem: smidgen.Problem, subset: Subset, batch: Any
) -> tuple[Callable[[], None], float]:
    tensors = SubsetVector(problem.model, subset).tensors
    optimiser = smidgen.fit.SubsetAdamW(tensors, subset, lr=1e-6, clip=1.0)
    kept = 4 * subset.size / sum(p.numel() for p in problem.model.parameters())

    def side() -> None:
        _loss(problem, batch, tensors)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return side, round(kept, 4)


def _chain(
    problem: smidgen.Problem, moving: Subset, batch: Any
) -> tuple[dict[str, Callable[[], None]], float]:
    """A step while burning in, one with the preconditioner fixed, and a sample."""
    prior, course = ScalePrior(), ChainSchedule(2 * BURN_IN, BURN_IN, THIN)
    tensors = SubsetVector(problem.model, moving).tensors
    head = smidgen.coverage(problem.model).last().parts
    ranked = [name for name in tensors if name not in head]
    base = {n: p.detach() for n, p in problem.model.named_parameters() if n in ranked}
    settings = StepSettings(1e-6, 1e-5, 0.1)
    movers = [
        Langevin(tensors, base, prior, settings, 1000, burn_in, 0)
        for burn_in in (BURN_IN, 1)
    ]
    chain, fixed = (
        Chain(problem, tensors, ranked, prior, course, each, keep_displacement=False)
        for each in movers
    )
    fixed.step(batch, 1)
    count = sum(each.numel() for each in tensors.values())
    kept = sum(each.numel() for each in movers[0].memory.values())
    kept += sum(each.numel() for part in chain.sums.values() for each in part.values())
    sides = {
        "burn-in step": lambda: chain.step(batch, 2),
        "sampling step": lambda: fixed.step(batch, 2),
        "sample": lambda: fixed.sample(BURN_IN, 0, 0.0),
    }
    return sides, round(kept / count, 4)
