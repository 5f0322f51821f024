"""How a sparse network is trained, and what each epoch of it came to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from smidgen.errors import ArgumentError
from smidgen.sparse.prune import PRUNING_SCORES, Removal
from smidgen.sparse.rewire import ActiveSetChange


@dataclass(frozen=True)
class SparseTraining:
    """How to train; the defaults are plain variational inference at temperature 1.

    Args:
        epochs: Passes over the training data.
        learning_rate: First rate; it falls to zero as a cosine. Few weights are larger
            weights, so a sparse network wants a higher one than a dense one.
        scale_rate: Rate of the log-scales, as a multiple of it.
        optimiser: "adam", or "sgd" with momentum 0.9.
        temperature: T, what the KL term is multiplied with.
        warm_up: Share of the steps over which the KL term grows from nothing.
        weight_decay: Decay of means and all else but log-scales: a second prior, off
            unless asked for.
        removal: The score that decides which weights go.
        every: Steps between moves of the active set; take less where there are few steps.
        replaced: Share of the active weights that the first moves replace.
        until: Share of the steps after which the active set stays.
        passes: Batches, each under noise of its own, that the gradients of inactive
            weights are averaged over; early in an epoch the same batches come again,
            under other noise.

    Raises:
        ArgumentError: If one is outside what it may be.
    """

    epochs: int = 20
    learning_rate: float = 3e-3
    scale_rate: float = 1.0
    optimiser: Literal["adam", "sgd"] = "adam"
    temperature: float = 1.0
    warm_up: float = 0.25
    weight_decay: float = 0.0
    removal: Removal = "snr"
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
        scores = ", ".join(repr(each) for each in PRUNING_SCORES)
        self._check("removal", f"one of {scores}", self.removal in PRUNING_SCORES)

    def _check(self, name: str, allowed: str, good: bool) -> None:
        if not good:
            raise ArgumentError(f"{name} must be {allowed}, got {getattr(self, name)!r}.")


@dataclass(frozen=True)
class SparseEpoch:
    """What one epoch came to; validation is of the means, where there is any.

    `connectivity` is the share of active weights at each input of each layer.
    """

    number: int
    train_nll: float
    kl: float
    nll: float | None
    accuracy: float | None
    seconds: float
    connectivity: Mapping[str, Sequence[float]] = field(repr=False)

    def scores(self) -> dict[str, Any]:
        """List all but the connectivity."""
        found = asdict(self)
        del found["connectivity"]
        return found


_NOTES = "notes"


def pack_history(
    history: Sequence[SparseEpoch], moves: Sequence[ActiveSetChange], **more: Any
) -> dict[str, Tensor]:
    """Write the course of a training as tensors.

    Args:
        history: Its epochs, one at least.
        moves: Its moves.
        more: What else to remember, as JSON takes it.

    Returns:
        Connectivity by layer, (epochs, bins), and all else as JSON in bytes.
    """
    notes = {
        "history": [epoch.scores() for epoch in history],
        "moves": [move.to_record() for move in moves],
        **more,
    }
    text = bytearray(json.dumps(notes).encode())
    found = {_NOTES: torch.frombuffer(text, dtype=torch.uint8)}
    for name in history[0].connectivity:
        shares = [list(epoch.connectivity[name]) for epoch in history]
        found[f"connectivity/{name}"] = torch.tensor(shares, dtype=torch.float32)
    return found


def unpack_history(
    tensors: Mapping[str, Tensor],
) -> tuple[list[SparseEpoch], list[ActiveSetChange], dict[str, Any]]:
    """Read what `pack_history` wrote.

    Args:
        tensors: Those tensors, perhaps among others.

    Returns:
        Epochs, moves, and what else was remembered.
    """
    notes = json.loads(bytes(tensors[_NOTES].tolist()))
    prefix = "connectivity/"
    shares = {
        name.removeprefix(prefix): value.tolist()
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
    history = [
        SparseEpoch(**each, connectivity={name: rows[i] for name, rows in shares.items()})
        for i, each in enumerate(notes.pop("history"))
    ]
    changes = [ActiveSetChange(*change.values()) for change in notes.pop("moves")]
    return history, changes, notes
