"""Changing the active set while training: prune, grow, and carry the optimiser's state.

Every Δ steps a fraction f(t) = (α/2)(1 + cos(π t / t_end)) of the active weights is pruned,
the lowest scores first (`prune`), and as many grow, the largest gradients first (`grow`);
after t_end the set stays. A weight that grows starts at μ = 0 with the mean scale of its
layer, without momentum and with its layer's mean second moment: an optimiser such as Adam
divides by the root of that, and corrects for a start at zero only in its own first steps.
A weight that is pruned and grows back at once keeps its value. The number of active
weights never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import cos, floor, pi
from typing import Any

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError
from smidgen.sparse.grow import GradientTap, Loss, find_largest_gradients, tap_gradients
from smidgen.sparse.layers import GaussianLayer
from smidgen.sparse.network import SparseNetwork
from smidgen.sparse.pattern import Pattern
from smidgen.sparse.prune import (
    PruningScore,
    check_score,
    log_score,
    mark_best,
    mark_survivors,
)

# As torch's optimisers name what they divide by: a zero there would make a huge step.
_SECOND_MOMENTS = frozenset(
    ("exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg", "sum")
)


@dataclass(frozen=True)
class Schedule:
    """When the active set changes and by how much.

    Args:
        steps: Steps of the whole training.
        every: Steps between changes, Δ.
        fraction: Fraction of the active weights that the first changes replace, α.
        until: Fraction of the steps after which the set stays.

    Raises:
        ArgumentError: If an argument is out of range.
    """

    steps: int
    every: int = 100
    fraction: float = 0.3
    until: float = 0.75

    def __post_init__(self) -> None:
        if self.steps < 1 or self.every < 1:
            raise ArgumentError(
                f"steps and every must be 1 or more, got {self.steps} and {self.every}."
            )
        if not 0 <= self.fraction <= 1 or not 0 <= self.until <= 1:
            raise ArgumentError(
                f"fraction and until must be in [0, 1], got {self.fraction} and "
                f"{self.until}."
            )

    def fraction_at(self, step: int) -> float:
        """Compute the fraction of the active weights to replace after a step, from 1."""
        end = self.until * self.steps
        if step % self.every or step >= end:
            return 0.0
        return self.fraction / 2 * (1 + cos(pi * step / end))


@dataclass(frozen=True)
class ActiveSetChange:
    """How many weights of each layer were grown and pruned after a step."""

    step: int
    grown: Mapping[str, int]
    pruned: Mapping[str, int]

    def to_record(self) -> dict[str, Any]:
        """Write the change under the keys of records and checkpoints."""
        return {"step": self.step, "came": dict(self.grown), "went": dict(self.pruned)}


class Rewiring:
    """Changes the active set of a network while any trainer trains it.

    Call `advance` after every step of the optimiser.

    Args:
        network: The network.
        optimiser: Its state follows the weights: momentum, Adam's moments.
        schedule: When to change how much.
        removal: The score that decides which weights are pruned.
    """

    def __init__(
        self,
        network: SparseNetwork,
        optimiser: torch.optim.Optimizer,
        schedule: Schedule,
        *,
        removal: PruningScore = "snr",
    ) -> None:
        check_score("removal", removal)
        self.network = network
        self.optimiser = optimiser
        self.schedule = schedule
        self.removal: PruningScore = removal
        self.step = 0

    def advance(self, losses: Callable[[], Iterable[Loss]]) -> ActiveSetChange | None:
        """Count a step, and change the active set if it is time.

        Args:
            losses: Called only then; yields functions that compute the mean loss of a
                batch without the KL term, with fresh noise each.

        Returns:
            What changed; None if nothing did, or there was no loss.
        """
        self.step += 1
        fraction = self.schedule.fraction_at(self.step)
        if fraction <= 0 or self.network.count == self.network.total:
            return None
        layers = dict(self.network.layers)
        if self.network.budget != "global":
            # In a whole layer nothing is left to grow.
            layers = {n: x for n, x in layers.items() if x.pattern.indices is not None}
        surviving = self._find_survivors(layers, fraction)
        pruned = {n: x.pattern.count - len(surviving[n]) for n, x in layers.items()}
        # Without a loss there is no gradient to choose by.
        passes = list(losses()) if any(pruned.values()) else []
        if not passes:
            return None
        taps = tap_gradients(self.network.model, layers, passes)
        grown = self._find_growth(layers, taps, surviving, pruned)
        for name, layer in layers.items():
            indices = torch.cat([surviving[name], grown[name]])
            change_active_set(layer, indices, self.optimiser)
        return ActiveSetChange(self.step, {n: len(x) for n, x in grown.items()}, pruned)

    def _find_survivors(
        self, layers: Mapping[str, GaussianLayer], fraction: float
    ) -> dict[str, Tensor]:
        """Indices of each layer that stay, ascending."""
        scores = {
            name: log_score(layer.means, layer.log_scales, self.removal)
            for name, layer in layers.items()
        }
        sizes = {name: score.numel() for name, score in scores.items()}
        counts: int | dict[str, int]
        if self.network.budget == "global":
            total = sum(sizes.values())
            counts = total - floor(fraction * total)
        else:
            counts = {name: size - floor(fraction * size) for name, size in sizes.items()}
        return {
            name: layers[name].pattern.list_indices(mask.device)[mask]
            for name, mask in mark_survivors(scores, counts).items()
        }

    def _find_growth(
        self,
        layers: Mapping[str, GaussianLayer],
        taps: Mapping[str, GradientTap],
        surviving: Mapping[str, Tensor],
        pruned: Mapping[str, int],
    ) -> dict[str, Tensor]:
        """Indices of each layer that grow; as many in all as were pruned."""
        together = self.network.budget == "global"
        total = sum(pruned.values())
        candidates = {
            name: find_largest_gradients(
                layer, taps[name], surviving[name], total if together else pruned[name]
            )
            for name, layer in layers.items()
        }
        if not together:
            return {name: layer.indices for name, layer in candidates.items()}
        best = mark_best(torch.cat([x.scores for x in candidates.values()]), total)
        masks = best.split([len(x.scores) for x in candidates.values()])
        return {
            name: layer.indices[mask]
            for (name, layer), mask in zip(candidates.items(), masks, strict=True)
        }


def change_active_set(
    layer: GaussianLayer, indices: Tensor, optimiser: torch.optim.Optimizer | None = None
) -> None:
    """Give a layer another active set; weights in both keep value and momentum."""
    old = layer.pattern.list_indices(layer.means.device)
    pattern = replace(layer.pattern, indices=indices)
    new = pattern.list_indices(layer.means.device)
    positions = torch.searchsorted(old, new).clamp_max(old.numel() - 1)
    known = old[positions] == new

    def carry(values: Tensor, fresh: Tensor | float = 0.0) -> Tensor:
        carried = values.detach().index_select(0, positions)
        return torch.where(known, carried, torch.as_tensor(fresh).to(carried))

    if optimiser is not None:
        for parameter in (layer.means, layer.log_scales):
            if parameter is not None:
                _carry_state(optimiser, parameter, carry)
    log_scales = None
    if layer.log_scales is not None:
        mean = layer.log_scales.detach().exp().mean().log()
        log_scales = carry(layer.log_scales, mean)
    replace_weights(layer, pattern, carry(layer.means), log_scales, optimiser)


def replace_weights(
    layer: GaussianLayer,
    pattern: Pattern,
    means: Tensor,
    log_scales: Tensor | None,
    optimiser: torch.optim.Optimizer | None,
) -> None:
    """Give a layer other weights; its optimiser goes on with the new parameters."""
    before = (layer.means, layer.log_scales)
    layer.set_weights(pattern, means, log_scales)
    for old, new in zip(before, (layer.means, layer.log_scales), strict=True):
        if optimiser is None or old is None or new is None or old is new:
            continue
        for group in optimiser.param_groups:
            group["params"] = [new if p is old else p for p in group["params"]]
        if old in optimiser.state:
            optimiser.state[new] = optimiser.state.pop(old)


def _carry_state(
    optimiser: torch.optim.Optimizer,
    parameter: nn.Parameter,
    carry: Callable[[Tensor, Tensor | float], Tensor],
) -> None:
    state = optimiser.state.get(parameter, {})
    for key, value in state.items():
        # Counters stay; whatever has an entry for each weight follows it.
        if isinstance(value, Tensor) and value.dim() and value.shape == parameter.shape:
            state[key] = carry(value, value.mean() if key in _SECOND_MOMENTS else 0.0)
