"""A training step of SSVI against a step of dense VI, on a wide MLP.

Both are `make_sparse` networks under the same loop: local reparametrisation, the KL
term, momentum. Every round runs all sides once; a ratio is the median over rounds of one
side's time over dense VI's of the same round. A move of the active set is timed apart and
shared among the steps between two moves. State is what training must hold for the weights:
values, indices and momentum; with sparse orders, what the sparse path derives as well.
Operations are counted for the active weights, and as done by the paths that were taken.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import truediv
from statistics import median
from typing import Any

import torch
from torch import nn

from bench.measuring import interleaved
from smidgen.runtime.record import Record
from smidgen.sparse import Rewiring, Schedule, SparseNetwork, make_sparse
from smidgen.sparse.architectures import mlp
from smidgen.sparse.flops import count_step_flops

INPUTS, HIDDEN, CLASSES, BATCH = 784, (2048, 2048, 2048), 10, 128
ROUNDS, WARM, EVERY, PASSES, EXAMPLES = 15, 3, 100, 4, 60_000
DENSITIES = {"dense VI": 1.0, "10 %": 0.1, "5 %": 0.05, "1 %": 0.01}


class Side:
    """One network with its optimiser and a step to time."""

    def __init__(self, density: float, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        torch.manual_seed(0)
        model = mlp((INPUTS,), CLASSES, hidden=HIDDEN)
        self.network: SparseNetwork = make_sparse(model, density=density)
        self.optimiser = torch.optim.SGD(self.network.parameters(), lr=1e-3, momentum=0.9)
        self.batch = batch

    def loss(self) -> torch.Tensor:
        """Mean NLL of the batch under fresh noise."""
        return nn.functional.cross_entropy(self.network(self.batch[0]), self.batch[1])

    def step(self) -> None:
        """One step of training."""
        objective = self.loss() + self.network.kl() / EXAMPLES
        self.optimiser.zero_grad()
        objective.backward()
        self.optimiser.step()

    def move(self) -> None:
        """One move of the active set, a fifth of it."""
        schedule = Schedule(10**6, every=1, fraction=0.2)
        alternation = Rewiring(self.network, self.optimiser, schedule)
        assert alternation.advance(lambda: [self.loss] * PASSES) is not None

    def state(self) -> tuple[int, int]:
        """Bytes that training holds, without and with the derived sparse orders."""
        self.step()  # after a move the orders are derived anew
        held = self.network.state_bytes(self.optimiser)
        return held, held + self.network.derived_bytes


def run() -> Record:
    """Measure all sides and return the record."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(BATCH, INPUTS, generator=generator)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    sides = {n: Side(density, (inputs, labels)) for n, density in DENSITIES.items()}
    steps: dict[str, Callable[[], Any]] = {n: side.step for n, side in sides.items()}
    moves = {f"{n} move": side.move for n, side in sides.items() if n != "dense VI"}
    times = interleaved({**steps, **moves}, rounds=ROUNDS, warm=WARM)
    base = times["dense VI"]
    counted = {
        n: count_step_flops(side.network, inputs, passes=PASSES, every=EVERY)
        for n, side in sides.items()
    }
    results: dict[str, Any] = {}
    whole = sides["dense VI"].state()[0]
    for name, side in sides.items():
        if name == "dense VI":
            continue
        step = median(map(truediv, times[name], base))
        move = median(map(truediv, times[f"{name} move"], base))
        held, derived = side.state()
        results[name] = {
            "step": round(step, 3),
            "move": round(move, 2),
            f"step with a move every {EVERY}": round(step + move / EVERY, 3),
            "state": round(held / whole, 4),
            "state with sparse orders": round(derived / whole, 4),
            "operations": round(counted[name].total / counted["dense VI"].total, 4),
            "operations done": round(counted[name].done / counted["dense VI"].done, 4),
            "paths": [part.path for part in side.network.layers.values()],
        }
    config = {
        "model": f"MLP {INPUTS}-{'-'.join(map(str, HIDDEN))}-{CLASSES}",
        "batch": BATCH,
        "rounds": ROUNDS,
        "threads": torch.get_num_threads(),
        "optimiser": "SGD with momentum",
        "unit": "a step of dense VI with the local reparametrisation, in the same run",
    }
    return Record("bench", config, results, seed=0)
