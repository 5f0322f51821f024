"""How many weights of each layer are active: the total is exact, layers share it.

uniform   the same density in every layer.
erk       Erdős–Rényi kernel (Evci et al., 2020): density ∝ Σ axes / Π axes, so that
          small layers stay denser; layers that would exceed 1 are whole.
global    uniform at the start; afterwards layers exchange weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, prod
from typing import Literal

from smidgen.errors import ArgumentError, is_number
from smidgen.types import Shape

Budget = Literal["uniform", "erk", "global"]


def share_out(
    shapes: Mapping[str, Shape], density: float, budget: Budget = "uniform"
) -> dict[str, int]:
    """Divide the active weights, density times all weights, among layers; each gets one."""
    if not is_number(density) or not 0 < density <= 1:
        raise ArgumentError(f"density must be in (0, 1], got {density!r}. Try 0.1.")
    if budget not in ("uniform", "erk", "global"):
        raise ArgumentError(
            f"budget must be 'uniform', 'erk' or 'global', got {budget!r}. Leave it out for "
            "'uniform'."
        )
    sizes = {name: prod(shape) for name, shape in shapes.items()}
    total = max(len(sizes), round(density * sum(sizes.values())))
    if budget == "erk":
        quotas = _erk_quotas(shapes, sizes, total)
    else:
        quotas = {name: density * size for name, size in sizes.items()}
    return _round_quotas(quotas, sizes, total)


def _erk_quotas(
    shapes: Mapping[str, Shape], sizes: Mapping[str, int], total: int
) -> dict[str, float]:
    raw = {name: sum(shape) / sizes[name] for name, shape in shapes.items()}
    whole: set[str] = set()
    while True:
        others = [name for name in sizes if name not in whole]
        remaining = total - sum(sizes[name] for name in whole)
        factor = remaining / max(sum(raw[name] * sizes[name] for name in others), 1e-300)
        full = {name for name in others if factor * raw[name] >= 1}
        if not full:
            break
        whole |= full
    return {n: float(sizes[n]) if n in whole else factor * raw[n] * sizes[n] for n in sizes}


def _round_quotas(
    quotas: Mapping[str, float], sizes: Mapping[str, int], total: int
) -> dict[str, int]:
    """Round down to whole weights and give the rest to the largest remainders."""
    counts = {n: min(sizes[n], max(1, floor(quotas[n] + 1e-9))) for n in sizes}
    order = sorted(sizes, key=lambda n: (counts[n] - quotas[n], n))
    while sum(counts.values()) != total:
        step = 1 if sum(counts.values()) < total else -1
        for name in order if step > 0 else reversed(order):
            if sum(counts.values()) == total:
                break
            if 1 <= counts[name] + step <= sizes[name]:
                counts[name] += step
    return counts
