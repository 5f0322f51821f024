"""Do chains that saw other data choose the same weights?

Halves of one chain, or chains with other noise on the same data, agree the more the less
noise there is, also on random labels. Chains on disjoint halves of the data share neither
trajectory nor examples, so what both choose is of the task (or of the network: weights
with large gradients whatever the labels say; run it on shuffled labels to tell).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from smidgen.errors import ArgumentError
from smidgen.fit.bayestune.chain import Scales
from smidgen.fit.bayestune.langevin import LangevinSettings, langevin
from smidgen.outputs.problem import Problem
from smidgen.types import Batch
from smidgen.weights.affine import ceil_fraction
from smidgen.weights.subset import Subset
from smidgen.weights.top_k import top_k_overlap


@dataclass(frozen=True, eq=False)
class Agreement:
    """How much of their choice two chains share.

    Args:
        overlap: The share of the top fraction that both choose.
        chance: The same for choices that have nothing to do with each other.
        fraction: The share of the weights that each chooses.
        scales: What each chain found.
    """

    overlap: float
    chance: float
    fraction: float
    scales: tuple[Scales, Scales]

    def to_dict(self) -> dict[str, float]:
        """The numbers as JSON takes them."""
        return {
            "fraction": self.fraction,
            "overlap": self.overlap,
            "chance": self.chance,
        }


def agreement(
    model: nn.Module | Problem,
    first: Iterable[Batch],
    second: Iterable[Batch],
    *,
    subset: Subset | None = None,
    fraction: float = 0.005,
    settings: LangevinSettings | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Agreement:
    """Run a chain on each half of the data and compare what they choose.

    Args:
        model: The pretrained model, or its `Problem`; it stays as it is.
        first: Batches of one half of the training data.
        second: Batches of the other half.
        subset: The whole parameters that move, as in `fit.langevin`.
        fraction: The share of the weights whose choice is compared, in (0, 1].
        settings: How both chains go.
        seed: Of the first chain; the second has the next.
        progress: Draw progress bars; in a log, a line a minute.

    Returns:
        The overlap, its chance level, and both chains' scales.

    Raises:
        ArgumentError: If the fraction is outside (0, 1].
    """
    if not 0 < fraction <= 1:
        raise ArgumentError(f"fraction must be in (0, 1], got {fraction}.")

    def run(batches: Iterable[Batch], seed: int) -> Scales:
        told: Any = {"settings": settings, "seed": seed, "progress": progress}
        return langevin(model, batches, subset, **told)

    found = (run(first, seed), run(second, seed + 1))
    count = ceil_fraction(found[0].size, fraction)
    shared = top_k_overlap(found[0].means, found[1].means, count)
    return Agreement(shared, found[0].chance(fraction), fraction, found)
