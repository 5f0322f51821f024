"""What a sparse network costs beside dense VI: bytes, operations, measured time.

The twin is a dense Gaussian network of the same model. Steps of both are timed turn by
turn in this process, so that whatever else the machine does falls on both.
"""

from __future__ import annotations

import time
from copy import deepcopy
from statistics import median

import torch
from safetensors.torch import save as serialise
from torch import Tensor, nn

from smidgen.fit import SsviSettings
from smidgen.sparse import SparseNetwork
from smidgen.sparse.flops import count_step_flops
from smidgen.sparse.store import pack_tensors

_FIRST_ROUNDS, _ROUNDS = 3, 25
# The timed steps must not change what is timed.
_NO_RATE = 1e-12


def stored_bytes(network: SparseNetwork) -> int:
    """Bytes of the file that a network is saved in."""
    return len(serialise(pack_tensors(network), metadata={"format": "smidgen"}))


def costs(
    network: SparseNetwork,
    twin: SparseNetwork,
    batch: tuple[Tensor, Tensor],
    training: SsviSettings,
) -> dict[str, float | int | list[str]]:
    """Count and measure a network beside its dense twin; both are left as they were."""
    sides = {"own": deepcopy(network), "dense": deepcopy(twin)}
    seconds = step_seconds(sides, batch)
    counted = {
        name: count_step_flops(
            side,
            batch[0],
            passes=training.passes,
            every=training.every,
            until=training.until,
        )
        for name, side in sides.items()
    }
    whole, own = counted["dense"].total, counted["own"]
    return {
        "operations": own.done,
        "active_operations": own.total,
        "operations_ratio": own.done / whole,
        "active_operations_ratio": own.total / whole,
        "seconds_ratio": seconds,
        "paths": [part.taken_path for part in sides["own"].layers.values()],
    }


def step_seconds(sides: dict[str, SparseNetwork], batch: tuple[Tensor, Tensor]) -> float:
    """Median ratio of the time of a training step, the first side's to the second's."""
    inputs, labels = batch
    optimisers = {
        name: torch.optim.AdamW(side.train().parameters(), _NO_RATE, fused=True)
        for name, side in sides.items()
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(_FIRST_ROUNDS + _ROUNDS):
        for name, side in sides.items():
            started = time.perf_counter()
            loss = nn.functional.cross_entropy(side(inputs), labels)
            if side.stochastic:
                loss = loss + side.kl() / len(labels)
            optimisers[name].zero_grad(set_to_none=True)
            loss.backward()
            optimisers[name].step()
            times[name].append(time.perf_counter() - started)
    own, dense = (seconds[_FIRST_ROUNDS:] for seconds in times.values())
    return median(ours / theirs for ours, theirs in zip(own, dense, strict=True))
