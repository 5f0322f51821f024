"""Peak memory of one kind of work on MiniLM: python -m bench.cost.memory_side WORK [FOLDER].

WORK is "limit", "fit 10 %", "fit 100 %" or "predict" with a way; FOLDER holds the posterior
to predict with. Prints one line of JSON.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import torch

import smidgen
from bench.cost.posteriors import predict_by
from bench.measuring import make_tokens, peak_above, run_limit, start_peak
from bench.models.sentiment_minilm import load_finetuned_minilm


def main() -> None:
    """Do the work once, and print its peak."""
    minilm = load_finetuned_minilm()
    batch = make_tokens(16, 64, torch.Generator().manual_seed(0))
    work = sys.argv[1]
    side: Callable[[], Any]
    if work == "limit":
        side = lambda: run_limit(minilm.model, batch)  # noqa: E731
    elif percent := re.fullmatch(r"fit (\d+) %", work):
        subset = smidgen.select.sparse_kfac(minilm.model, percent=float(percent[1]))
        side = lambda: smidgen.fit.laplace(  # noqa: E731
            minilm.problem, [batch], subset, progress=False
        )
    else:
        posterior = smidgen.load(sys.argv[2], minilm.model)
        way = work.removeprefix("predict ")
        side = predict_by(way, posterior, minilm.problem, [batch])
    # Libraries take memory on their first pass, which is not the work's.
    run_limit(minilm.model, batch)
    before = start_peak()
    side()
    print(json.dumps({"bytes": peak_above(before)}))


if __name__ == "__main__":
    main()
