"""Floating-point operations of a training step, counted, not measured.

A layer of k active of n·m weights, used at P positions of a batch (rows, or pixels of
images), multiplies and adds K P times, 2 K P operations: K = k on the sparse path, and
K = n·m on the dense one, which multiplies zeros as well. With noise on outputs there are
two such products, of the means and of the variances:

    forward                   F = 2 K P d,     d = 2 with local noise, else 1
    backward                  2 F              (the first layer: F, its inputs are data)
    changing the active set   A · passes · [F + B + 2 n m P] / Δ

with A the fraction of steps before the set stays and B = F for layers behind the first
that changes, else 0. The last term is for layers that are pruned and grown; a whole layer
is only passed through. Noise, activations, normalisation and the optimiser are left out:
they are linear in units and in k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from smidgen.runtime.guard import preserve_random_state, set_modes
from smidgen.runtime.keeping.swap import swap_tensors
from smidgen.runtime.shadow import shadow_model
from smidgen.sparse.layers import GaussianLayer
from smidgen.sparse.network import SparseNetwork


@dataclass(frozen=True)
class StepFlops:
    """Operations of one training step: its products, and its part of the rewiring.

    `products` and `moves` count the active weights alone, as if every layer took the
    sparse path; `done_products` and `done_moves` count by the path each layer takes.
    """

    products: float
    moves: float
    done_products: float
    done_moves: float

    @property
    def total(self) -> float:
        """Products and rewiring, of the active weights alone."""
        return self.products + self.moves

    @property
    def done(self) -> float:
        """Products and rewiring, by the paths taken."""
        return self.done_products + self.done_moves


def count_step_flops(
    network: SparseNetwork,
    inputs: Tensor,
    *,
    passes: int = 4,
    every: int = 100,
    until: float = 0.75,
) -> StepFlops:
    """Count the operations of a training step on a batch of inputs.

    Args:
        network: The network; layers that have not chosen a path yet count as dense.
        inputs: A batch of inputs as the model takes them.
        passes: Batches that gradients are averaged over before the active set changes.
        every: Steps between changes.
        until: Fraction of the steps after which the set stays.

    Returns:
        The count.
    """
    positions = _count_positions(network, inputs)
    active = {name: layer.pattern.count for name, layer in network.layers.items()}
    done = {
        name: layer.pattern.total if layer.taken_path == "dense" else layer.pattern.count
        for name, layer in network.layers.items()
    }
    passes_per_step = until * passes / every
    products, moves = _count_operations(network, positions, active)
    done_products, done_moves = _count_operations(network, positions, done)
    return StepFlops(
        products, passes_per_step * moves, done_products, passes_per_step * done_moves
    )


def _count_positions(network: SparseNetwork, inputs: Tensor) -> dict[str, int]:
    """How often each layer's weights are used for a batch."""
    shadow = cast(SparseNetwork, shadow_model(network))
    set_modes(shadow)
    names = {layer: name for name, layer in shadow.layers.items()}
    positions = dict.fromkeys(names.values(), 0)

    def count(layer: nn.Module, _: object, outputs: Tensor) -> None:
        name = names[cast(GaussianLayer, layer)]
        # Rows of examples, tokens or pixels of a batch.
        positions[name] += outputs.numel() // network.layers[name].pattern.rows

    for layer in names:
        layer.register_forward_hook(count)
    with preserve_random_state(network), torch.no_grad(), swap_tensors(shadow, {}):
        shadow(inputs)
    return positions


def _count_operations(
    network: SparseNetwork, positions: Mapping[str, int], sizes: Mapping[str, int]
) -> tuple[float, float]:
    """Operations of a step's products, and of one pass of the rewiring."""
    products = moves = 0.0
    reached = False
    everywhere = network.budget == "global" and network.count < network.total
    for index, (name, layer) in enumerate(network.layers.items()):
        draws = 2 if layer.noise == "local" else 1
        forward = 2.0 * sizes[name] * positions[name] * draws
        # The first layer's inputs are data: their gradient is not needed.
        products += forward * (2 if index == 0 else 3)
        # The backward pass ends at the outputs of the first layer that changes.
        moves += forward * (2 if reached else 1)
        if everywhere or layer.pattern.indices is not None:
            moves += 2.0 * layer.pattern.total * positions[name]
            reached = True
    return products, moves if reached else 0.0
