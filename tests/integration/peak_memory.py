"""Run one kind of pass in a fresh process and print its peak memory in bytes.

python -m tests.integration.peak_memory plain|fit|predict PERCENT
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification

import smidgen

BATCH, TOKENS = 16, 64


def main() -> None:
    what, percent = sys.argv[1], float(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=2000,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        num_labels=2,
    )
    model = BertForSequenceClassification(config).eval()
    ids = torch.randint(0, 2000, (BATCH, TOKENS))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    batch["labels"] = torch.randint(0, 2, (BATCH,))
    subset = smidgen.select.sparse_kfac(model, percent=percent)
    if what == "predict":
        # One short text: what the allocator keeps of this pass must not hide the peak.
        short = {key: value[:1, :2] for key, value in batch.items() if key != "labels"}
        posterior = smidgen.fit.laplace(model, [short], subset)
    # From here on the peak counts: setting it back needs Linux, as the reading does.
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = resident("VmRSS")
    if what == "plain":
        model(**batch).loss.backward()
    elif what == "fit":
        smidgen.fit.laplace(model, [batch] * 3, subset)
    else:
        for _ in range(3):
            smidgen.predict(posterior, model, batch)
    print(resident("VmHWM") - before)


def resident(field: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(rf"{field}:\s+(\d+) kB", status).group(1)) * 1024


if __name__ == "__main__":
    main()
