"""Floating-point operations of a training step, counted, not measured.

A map of k active weights, used at P positions of a batch (rows, or pixels of images),
multiplies and adds k P times: 2 k P operations. With noise on outputs there are two
such products, of the means and of the variances:

    forward                   F = 2 k P d,     d = 2 with local noise, else 1
    backward                  2 F              (the first map: F, its inputs are data)
    moving the active set     A [passes · (F + F) + 2 n m P · passes] / Δ

with A the share of steps before the set stays. Noise, activations, normalisation and
the optimiser are left out: they are linear in units and in k.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from smidgen.guard import untouched
from smidgen.sparse.network import SparseNetwork


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
) -> StepFlops:
    """Count the operations of a training step on a batch.

    Args:
        network: The network.
        inputs: A batch of inputs as the model takes them.
        passes: Batches that a move averages gradients over.
        every: Steps between moves.
        until: Share of the steps after which the set stays.

    Returns:
        The count.
    """
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
    products = moves = 0.0
    for place, (name, part) in enumerate(network.maps.items()):
        draws = 2 if part.noise == "local" else 1
        forward = 2.0 * part.pattern.count * positions[name] * draws
        # The first map's inputs are data: nobody asks for their gradient.
        products += forward * (2 if place == 0 else 3)
        if part.pattern.indices is not None:
            back = 0.0 if place == 0 else forward
            grown = 2.0 * part.pattern.total * positions[name]
            moves += passes * (forward + back + grown)
    return StepFlops(products, until * moves / every)
