"""The sparse path of a layer against its dense one, by size, density and batch.

Both paths compute the same: here forward and backward of one Gaussian layer's linear part, in
processor time of one thread. `path="auto"` takes the sparse path by a rule without a clock;
the ratios show where that is right and what it costs where it is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bench.measuring import interleaved, median_ratio
from smidgen.runtime.record import Record
from smidgen.sparse import SparseSettings, make_sparse
from smidgen.sparse.layers import GaussianLayer, choose_path

SIZES, BATCHES = ((64, 64), (256, 256), (1024, 1024), (768, 3072), (2048, 2048)), (32, 128)
CHANNELS = ((16, 8), (64, 8), (128, 8), (256, 8), (512, 4))
DENSITIES = (0.01, 0.03, 0.1, 0.2, 0.3, 0.5)
ROUNDS, WARM = 5, 2


def run() -> Record:
    """Time both paths of all layers."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for rows, columns in SIZES:
        for batch in BATCHES:
            inputs = torch.randn(batch, columns, generator=_seeded())
            name = f"linear {columns} → {rows}, batch {batch}"
            results[name] = _compare(lambda r=rows, c=columns: nn.Linear(c, r), inputs)
    for width, side in CHANNELS:
        inputs = torch.randn(32, width, side, side, generator=_seeded())
        name = f"convolution 3 × 3, {width} → {width}, 32 images of {side} × {side}"
        module = partial(nn.Conv2d, width, width, 3, padding=1)
        results[name] = _compare(module, inputs)
    config = {
        "what": "sparse over dense path, forward and backward, by density",
        "rounds": ROUNDS,
        "threads": torch.get_num_threads(),
        "clock": "processor time",
    }
    return Record("bench", config, results, seed=0)


def _compare(module: Callable[[], nn.Module], inputs: Tensor) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for density in DENSITIES:
        torch.manual_seed(0)
        network = make_sparse(module(), density=density, settings=SparseSettings())
        (layer,) = network.layers.values()
        sides = {path: partial(_run, layer, inputs, path) for path in ("dense", "sparse")}
        times = interleaved(sides, rounds=ROUNDS, warm=WARM, clock=time.process_time)
        found[f"{density:g}"] = {
            "sparse / dense": median_ratio(times["sparse"], times["dense"]),
            "chosen": choose_path(layer, inputs),
        }
    return found


def _run(layer: GaussianLayer, inputs: Tensor, path: Any) -> None:
    layer.path = path
    given = inputs.detach().requires_grad_()
    values = layer.means.detach().requires_grad_()
    outputs = layer.apply_values(given, values)
    torch.autograd.grad(outputs, (given, values), torch.ones_like(outputs))


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
