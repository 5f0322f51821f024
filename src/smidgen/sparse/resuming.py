"""A training in mid-course as tensors: put back, it goes on bit for bit.

Network and active set, the optimiser's state of the active weights, and the state of
every source of randomness. `describe_network` is what a checkpoint of it is compared by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from smidgen.errors import SmidgenError, StoreError
from smidgen.runtime.fingerprint import fingerprint
from smidgen.sparse.network import SparseNetwork
from smidgen.sparse.rewire import replace_values
from smidgen.sparse.store import describe_layers, pack_tensors, restore_rest, unpack_weights

_OWN, _TORCH, _CUDA = "generator/network", "generator/torch", "generator/cuda"


def describe_network(network: SparseNetwork) -> dict[str, Any]:
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


def pack_training(
    network: SparseNetwork,
    optimiser: torch.optim.Optimizer,
    generators: Mapping[str, torch.Generator],
) -> dict[str, Tensor]:
    """List the state of a training.

    Args:
        network: The network.
        optimiser: Its optimiser.
        generators: Sources of randomness besides the network's and torch's own.

    Returns:
        Tensors by name.
    """
    tensors = pack_tensors(network)
    for index, _, held in _parameters(optimiser):
        for key, value in optimiser.state.get(held, {}).items():
            tensors[f"optimiser/{index}/{key}"] = torch.as_tensor(value).clone()
    tensors[_OWN] = network.generator.get_state()
    tensors[_TORCH] = torch.get_rng_state()
    for name, generator in generators.items():
        tensors[f"generator/loader/{name}"] = generator.get_state()
    if _on_gpu(network):
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            tensors[f"{_CUDA}/{index}"] = state
    return tensors


def restore_training(
    tensors: Mapping[str, Tensor],
    paths: Mapping[str, str],
    network: SparseNetwork,
    optimiser: torch.optim.Optimizer,
    generators: Mapping[str, torch.Generator],
) -> None:
    """Put a training back as it was.

    Args:
        tensors: What `pack_training` listed.
        paths: How each layer computed.
        network: A network made in the same way.
        optimiser: Its optimiser, made in the same way.
        generators: The same sources of randomness.

    Raises:
        StoreError: If something is missing or does not fit.
    """
    header = describe_layers(network)
    for name, entry in header["maps"].items():
        entry["path"] = paths[name]
    try:
        for name, weights in unpack_weights(tensors, header).items():
            values = (weights.pattern, weights.means, weights.log_scales)
            replace_values(network.layers[name], *values, optimiser)
        restore_rest(network, tensors, header)
        for index, group, held in _parameters(optimiser):
            # Fused optimisers count their steps where the weights are.
            near = group.get("fused") or group.get("capturable")
            prefix = f"optimiser/{index}/"
            state = {
                key.removeprefix(prefix): value.to(held.device)
                if near or value.dim()
                else value
                for key, value in tensors.items()
                if key.startswith(prefix)
            }
            if state:
                optimiser.state[held] = state
        network.generator.set_state(tensors[_OWN])
        torch.set_rng_state(tensors[_TORCH])
        for name, generator in generators.items():
            generator.set_state(tensors[f"generator/loader/{name}"])
        if _on_gpu(network):
            for index in range(torch.cuda.device_count()):
                torch.cuda.set_rng_state(tensors[f"{_CUDA}/{index}"], index)
    except (ValueError, KeyError, RuntimeError, SmidgenError) as error:
        raise StoreError(
            f"the checkpoint does not fit this training ({error}). Delete it to start anew."
        ) from error


def _parameters(
    optimiser: torch.optim.Optimizer,
) -> Iterator[tuple[int, dict[str, Any], Tensor]]:
    """Place, group and tensor of each parameter."""
    found = [(group, held) for group in optimiser.param_groups for held in group["params"]]
    for index, (group, held) in enumerate(found):
        yield index, group, held


def _on_gpu(network: SparseNetwork) -> bool:
    return any(parameter.is_cuda for parameter in network.parameters())
