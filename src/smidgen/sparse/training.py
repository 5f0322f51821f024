"""How a sparse network is trained, what each epoch reports, and how it is resumed.

The state of a training is its network and active set, the optimiser's state of the
active weights, and the source of the weights' noise. Restored from those tensors it goes
on bit for bit. A checkpoint is compared by `describe_network`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from smidgen.errors import ArgumentError, StoreError
from smidgen.runtime.checkpoint import (
    of_prefix,
    pack_optimiser,
    unpack_optimiser,
    with_prefix,
)
from smidgen.runtime.guard import fingerprint
from smidgen.runtime.reading import make_from_json, parse_object
from smidgen.sparse.build import FirstWeights
from smidgen.sparse.network import SparseNetwork
from smidgen.sparse.prune import PruningScore, check_score
from smidgen.sparse.rewire import ActiveSetChange, replace_weights
from smidgen.sparse.store import (
    describe_layers,
    pack_tensors,
    restore_rest,
    unpack_weights,
)

_NOISE = "generator/network"
_NOTES = "notes"
_CONNECTIVITY = "connectivity/"


@dataclass(frozen=True)
class SsviSettings:
    """How to train; the defaults are plain variational inference at temperature 1.

    Args:
        density: Active fraction of the weights, 0.1 by default; for a model that is not
            sparse yet, without a subset.
        start: Where the weights of a model start that is not sparse yet, see
            `make_sparse`.
        num_data: What the KL term counts against, N: examples, or labelled tokens where
            every token has a label. Taken from the loader's `dataset` by default.
        epochs: Passes over the training data.
        learning_rate: First rate; it falls to zero along a cosine. Fewer weights are
            larger weights, so a sparse network needs a higher rate than a dense one.
        scale_rate: Rate of the log-scales, as a multiple of `learning_rate`.
        optimiser: "adam", or "sgd" with momentum 0.9.
        temperature: T, the factor of the KL term.
        warm_up: Fraction of the steps over which the KL term grows from zero.
        weight_decay: Decay of the means and of everything else but the log-scales: a
            second prior, off by default.
        removal: The score that decides which weights are pruned.
        every: Steps between changes of the active set; use fewer for a short training.
        replaced: Fraction of the active weights that the first changes replace.
        until: Fraction of the steps after which the active set stays.
        passes: Batches that the gradients of inactive weights are averaged over, each
            under its own noise. Early in an epoch batches repeat, under other noise.

    Raises:
        ArgumentError: If an argument is out of range.
    """

    density: float | None = None
    start: FirstWeights | None = None
    num_data: int | None = None
    epochs: int = 20
    learning_rate: float = 3e-3
    scale_rate: float = 1.0
    optimiser: Literal["adam", "sgd"] = "adam"
    temperature: float = 1.0
    warm_up: float = 0.25
    weight_decay: float = 0.0
    removal: PruningScore = "snr"
    every: int = 100
    replaced: float = 0.3
    until: float = 0.75
    passes: int = 4

    def __post_init__(self) -> None:
        for name in ("epochs", "every", "passes"):
            self._check(name, "1 or more", getattr(self, name) >= 1)
        self._check("learning_rate", "> 0", self.learning_rate > 0)
        for name in ("scale_rate", "temperature", "weight_decay"):
            self._check(name, ">= 0", getattr(self, name) >= 0)
        for name in ("warm_up", "replaced", "until"):
            self._check(name, "in [0, 1]", 0 <= getattr(self, name) <= 1)
        self._check("optimiser", "'adam' or 'sgd'", self.optimiser in ("adam", "sgd"))
        check_score("removal", self.removal)

    def _check(self, name: str, allowed: str, good: bool) -> None:
        if not good:
            raise ArgumentError(f"{name} must be {allowed}, got {getattr(self, name)!r}.")


@dataclass(frozen=True)
class SparseEpoch:
    """What one epoch reports; `nll` and `accuracy` are of the means on validation data.

    `connectivity` is the active fraction of the weights at each input of each layer.
    """

    number: int
    train_nll: float
    kl: float
    nll: float | None
    accuracy: float | None
    seconds: float
    connectivity: Mapping[str, Sequence[float]] = field(repr=False)

    def scores(self) -> dict[str, Any]:
        """List everything but the connectivity."""
        scores = asdict(self)
        del scores["connectivity"]
        return scores


def pack_history(
    history: Sequence[SparseEpoch], changes: Sequence[ActiveSetChange], **notes: Any
) -> dict[str, Tensor]:
    """Write connectivity by layer, (epochs, bins), and all else as JSON in bytes."""
    everything = {
        "history": [epoch.scores() for epoch in history],
        "moves": [change.to_record() for change in changes],
        **notes,
    }
    text = bytearray(json.dumps(everything).encode())
    tensors = {_NOTES: torch.frombuffer(text, dtype=torch.uint8)}
    for name in history[0].connectivity:
        fractions = [list(epoch.connectivity[name]) for epoch in history]
        tensors[_CONNECTIVITY + name] = torch.tensor(fractions, dtype=torch.float32)
    return tensors


def unpack_history(
    tensors: Mapping[str, Tensor],
) -> tuple[list[SparseEpoch], list[ActiveSetChange], dict[str, Any]]:
    """Read the epochs, changes of the active set and notes `pack_history` wrote."""
    # A validation NLL may be infinite.
    notes = parse_object(bytes(tensors[_NOTES].tolist()), finite=False)
    fractions = {
        name.removeprefix(_CONNECTIVITY): value.tolist()
        for name, value in tensors.items()
        if name.startswith(_CONNECTIVITY)
    }
    history = []
    for i, scores in enumerate(notes.pop("history")):
        connectivity = {name: rows[i] for name, rows in fractions.items()}
        history.append(
            make_from_json(SparseEpoch, {**scores, "connectivity": connectivity})
        )
    changes = [ActiveSetChange(*change.values()) for change in notes.pop("moves")]
    return history, changes, notes


def describe_network(network: SparseNetwork) -> dict[str, Any]:
    """Describe a network at the start of its training by names, as JSON takes it."""
    shapes = {f"shape of {n}": list(x.shape) for n, x in network.layers.items()}
    about: dict[str, Any] = {
        **shapes,
        "density": network.density,
        "budget": network.budget,
        "deterministic": not network.stochastic,
    }
    for name, layer in network.layers.items():
        about[f"active weights of {name}"] = layer.pattern.count
        about[f"prior of {name}"] = network.priors[name]
        about[f"noise of {name}"] = layer.noise
        about[f"path of {name}"] = layer.path
    return {**about, "first weights": fingerprint(network)}


def pack_training(network: SparseNetwork, optimiser: Optimizer) -> dict[str, Tensor]:
    """List the state of a network and of its optimiser."""
    return {
        **pack_tensors(network),
        **with_prefix("optimiser", pack_optimiser(optimiser)),
        _NOISE: network.generator.get_state(),
    }


def restore_training(
    tensors: Mapping[str, Tensor],
    paths: Mapping[str, str],
    network: SparseNetwork,
    optimiser: Optimizer,
) -> None:
    """Restore what `pack_training` listed into a network and optimiser made alike."""
    pictured = {n: t.shape[1:] for n, t in tensors.items() if n.startswith(_CONNECTIVITY)}
    bins = {_CONNECTIVITY + n: (len(each),) for n, each in network.connectivity().items()}
    if pictured != bins:
        raise StoreError("the connectivity is of other layers")
    header = describe_layers(network)
    for name, entry in header["maps"].items():
        # Layers may exchange weights in training.
        columns = tensors.get(f"columns/{name}")
        entry["active"] = None if columns is None else len(columns)
        entry["path"] = paths[name]
    for name, weights in unpack_weights(tensors, header).items():
        values = (weights.pattern, weights.means, weights.log_scales)
        replace_weights(network.layers[name], *values, optimiser)
    restore_rest(network, tensors, header)
    unpack_optimiser(optimiser, of_prefix("optimiser", tensors))
    network.generator.set_state(tensors[_NOISE])
