"""Floating-point operations of a training step, counted, not measured.

A map of k active weights, used at P positions of a batch (rows, or pixels of images),
multiplies and adds k P times: 2 k P operations. With noise on outputs there are two
such products, of the means and of the variances:

    forward                   F = 2 k P d,     d = 2 with local noise, else 1
    backward                  2 F              (the first map: F, its inputs are data)
    moving the active set     A [passes · (F + F) + 2 n m P · passes] / Δ

(its part 2 n m P only of maps that are not whole, its second F not of the first map)
with A the share of steps before the set stays. These are the operations that the active
weights need. A map on the dense path multiplies with zeros as well: counted by the path
that was taken it has k = n m. Noise, activations, normalisation and
the optimiser are left out: they are linear in units and in k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from smidgen.guard import untouched
from smidgen.sparse.maps import GaussianMap
from smidgen.sparse.network import SparseNetwork

Counted = Literal["active", "path"]
"""What is counted: what the active weights need, or what the paths taken do."""


@dataclass(frozen=True)
class StepFlops:
    """Operations of one training step: its products, and its share of the moves."""

    products: float
    moves: float

    @property
    def total(self) -> float:
        """Both together."""
        return self.products + self.moves


def step_flops(
    network: SparseNetwork,
    inputs: Tensor,
    *,
    passes: int = 4,
    every: int = 100,
    until: float = 0.75,
    by: Counted = "active",
) -> StepFlops:
    """Count the operations of a training step on a batch.

    Args:
        network: The network.
        inputs: A batch of inputs as the model takes them.
        passes: Batches that a move averages gradients over.
        every: Steps between moves.
        until: Share of the steps after which the set stays.
        by: "active" counts the active weights only, "path" all that a map on the dense
            path multiplies with; one that has run nothing yet is taken as dense.

    Returns:
        The count.
    """
    positions = _positions(network, inputs)
    moving = any(part.pattern.indices is not None for part in network.maps.values())
    products = moves = 0.0
    for place, (name, part) in enumerate(network.maps.items()):
        draws = 2 if part.noise == "local" else 1
        forward = 2.0 * _multiplied(part, by) * positions[name] * draws
        # The first map's inputs are data: nobody asks for their gradient.
        products += forward * (2 if place == 0 else 3)
        if moving:
            moves += passes * (forward + (0.0 if place == 0 else forward))
        if part.pattern.indices is not None:
            moves += passes * 2.0 * part.pattern.total * positions[name]
    return StepFlops(products, until * moves / every)


def _multiplied(part: GaussianMap, by: Counted) -> int:
    """How many weights a product with one map multiplies with."""
    dense = by == "path" and part.taken_path == "dense"
    return part.pattern.total if dense else part.pattern.count


def _positions(network: SparseNetwork, inputs: Tensor) -> dict[str, int]:
    """How often every weight of a map is used for a batch."""
    positions = dict.fromkeys(network.maps, 0)
    handles = []
    for name, part in network.maps.items():

        def hook(_: nn.Module, __: object, outputs: Tensor, name: str = name) -> None:
            positions[name] += network.maps[name].positions(outputs)

        handles.append(part.register_forward_hook(hook))
    try:
        with untouched(network), torch.no_grad():
            network(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return positions
