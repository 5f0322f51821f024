"""Floating-point operations of a training step, counted, not measured.

A layer of k active of n·m weights, used at P positions of a batch (rows, or pixels of
images), multiplies and adds K P times, 2 K P operations: K = k on the sparse path, and
K = n·m on the dense one, which multiplies zeros as well. With noise on outputs there are
two such products, of the means and of the variances:

    forward                   F = 2 K P d,     d = 2 with local noise, else 1
    backward                  2 F              (the first layer: F, its inputs are data)
    moving the active set     A · passes · [F + B + 2 n m P] / Δ

with A the share of steps before the set stays and B = F for layers behind the first that
moves, else 0. The last term is for layers whose weights may come and go; a whole layer is
only passed through. Noise, activations, normalisation and the optimiser are left out:
they are linear in units and in k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from smidgen.runtime.guard import preserve_model
from smidgen.sparse.network import SparseNetwork


@dataclass(frozen=True)
class StepFlops:
    """Operations of one training step: its products, and its share of the moves.

    `products` and `moves` are of the active weights alone, what the sparse path does in
    every layer; `done_products` and `done_moves` are those of the path each layer takes.
    """

    products: float
    moves: float
    done_products: float
    done_moves: float

    @property
    def total(self) -> float:
        """Products and moves, of the active weights alone."""
        return self.products + self.moves

    @property
    def done(self) -> float:
        """Products and moves, by the paths taken."""
        return self.done_products + self.done_moves


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
        network: The network; layers that have not chosen a path yet count as dense.
        inputs: A batch of inputs as the model takes them.
        passes: Batches that a move averages gradients over.
        every: Steps between moves.
        until: Share of the steps after which the set stays.

    Returns:
        The count.
    """
    positions = _positions(network, inputs)
    active = {name: part.pattern.count for name, part in network.layers.items()}
    done = {
        name: part.pattern.total if part.taken_path == "dense" else part.pattern.count
        for name, part in network.layers.items()
    }
    share = until * passes / every
    ideal, taken = (_counted(network, positions, each) for each in (active, done))
    return StepFlops(ideal[0], share * ideal[1], taken[0], share * taken[1])


def _positions(network: SparseNetwork, inputs: Tensor) -> dict[str, int]:
    """How often each layer's weights are used for a batch."""
    positions = dict.fromkeys(network.layers, 0)
    handles = []
    for name, part in network.layers.items():

        def hook(_: nn.Module, __: object, outputs: Tensor, name: str = name) -> None:
            positions[name] += network.layers[name].positions(outputs)

        handles.append(part.register_forward_hook(hook))
    try:
        with preserve_model(network), torch.no_grad():
            network(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return positions


def _counted(
    network: SparseNetwork, positions: Mapping[str, int], sizes: Mapping[str, int]
) -> tuple[float, float]:
    """Operations of a step's products, and of one pass of a move."""
    products = moves = 0.0
    reached = False
    everywhere = network.budget == "global" and network.count < network.total
    for place, (name, part) in enumerate(network.layers.items()):
        draws = 2 if part.noise == "local" else 1
        forward = 2.0 * sizes[name] * positions[name] * draws
        # The first layer's inputs are data: nobody asks for their gradient.
        products += forward * (2 if place == 0 else 3)
        # A move goes back to the outputs of the first layer that it concerns.
        moves += forward * (2 if reached else 1)
        if everywhere or part.pattern.indices is not None:
            moves += 2.0 * part.pattern.total * positions[name]
            reached = True
    return products, moves if reached else 0.0
