"""A network in the middle of its training as tensors: put back, it goes on bit for bit.

Network and active set, the optimiser's state of the active weights, and the source of the
weights' noise. `description` is what a checkpoint of it is compared by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from smidgen.runtime.checkpoint import (
    of_prefix,
    pack_optimiser,
    unpack_optimiser,
    with_prefix,
)
from smidgen.runtime.fingerprint import fingerprint
from smidgen.sparse.network import SparseNetwork
from smidgen.sparse.rewire import refill
from smidgen.sparse.store import fill, header_of, tensors_of, weights_of

_NOISE = "generator/network"


def description(network: SparseNetwork) -> dict[str, Any]:
    """Say by names what a network is at the start of its training, as JSON takes it."""
    found: dict[str, Any] = {
        f"shape of {name}": list(part.shape) for name, part in network.layers.items()
    }
    found["density"] = network.density
    found["budget"] = network.budget
    found["deterministic"] = not network.stochastic
    for name, part in network.layers.items():
        found[f"active weights of {name}"] = part.pattern.count
        found[f"prior of {name}"] = network.priors[name]
        found[f"noise of {name}"] = part.noise
        found[f"path of {name}"] = part.path
    return {**found, "first weights": fingerprint(network)}


def pack_training(network: SparseNetwork, optimiser: Optimizer) -> dict[str, Tensor]:
    """List the state of a network and of its optimiser."""
    return {
        **tensors_of(network),
        **with_prefix("optimiser", pack_optimiser(optimiser)),
        _NOISE: network.generator.get_state(),
    }


def unpack_training(
    tensors: Mapping[str, Tensor],
    paths: Mapping[str, str],
    network: SparseNetwork,
    optimiser: Optimizer,
) -> None:
    """Put a network and its optimiser back as they were.

    Args:
        tensors: What `pack_training` listed.
        paths: How each layer computed.
        network: A network made in the same way.
        optimiser: Its optimiser, made in the same way.
    """
    header = header_of(network)
    for name, entry in header["maps"].items():
        entry["path"] = paths[name]
    for name, weights in weights_of(tensors, header).items():
        values = (weights.pattern, weights.means, weights.log_scales)
        refill(network.layers[name], *values, optimiser)
    fill(network, tensors, header)
    unpack_optimiser(optimiser, of_prefix("optimiser", tensors))
    network.generator.set_state(tensors[_NOISE])
