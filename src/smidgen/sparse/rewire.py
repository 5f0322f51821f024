"""Moving the active set while training: remove, add, and tell the optimiser.

Every Δ steps a share f(t) = (α/2)(1 + cos(π t / t_end)) of the active weights goes, the
lowest scores first (`removal`), and as many come, the largest gradients first
(`addition`); after t_end the set stays. A weight that comes starts at μ = 0 with the mean
scale of its layer, without momentum and with its layer's mean second moment: an optimiser
such as Adam divides by the root of that, and corrects for a start at zero only in its own
first steps. One that goes and is at once wanted back stays as it was. The number of active
weights never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import cos, floor, pi
from typing import Any

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError
from smidgen.sparse.grow import (
    Candidates,
    GradientTap,
    Loss,
    largest_gradients,
    tap_gradients,
)
from smidgen.sparse.layers import GaussianLayer
from smidgen.sparse.network import SparseNetwork
from smidgen.sparse.pattern import Pattern
from smidgen.sparse.prune import PRUNING_SCORES, Removal, log_score, mark_survivors

# As torch's optimisers name what they divide by: zero there would be a step of many rates.
_SECOND_MOMENTS = frozenset(
    ("exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg", "sum")
)


@dataclass(frozen=True)
class Schedule:
    """When the active set moves and by how much.

    Args:
        steps: Steps of the whole training.
        every: Steps between moves, Δ.
        share: Share of the active weights that the first moves replace, α.
        until: Share of the steps after which the set stays.

    Raises:
        ArgumentError: If one is outside what it may be.
    """

    steps: int
    every: int = 100
    share: float = 0.3
    until: float = 0.75

    def __post_init__(self) -> None:
        if self.steps < 1 or self.every < 1:
            raise ArgumentError(
                f"steps and every must be 1 or more, got {self.steps} and {self.every}."
            )
        if not 0 <= self.share <= 1 or not 0 <= self.until <= 1:
            raise ArgumentError(
                f"share and until must be in [0, 1], got {self.share} and {self.until}."
            )

    def replaced(self, step: int) -> float:
        """Share of the active weights to replace after this step, counted from 1."""
        end = self.until * self.steps
        if step % self.every or step >= end:
            return 0.0
        return self.share / 2 * (1 + cos(pi * step / end))


@dataclass(frozen=True)
class ActiveSetChange:
    """How many weights of each layer came and went after a step."""

    step: int
    grown: Mapping[str, int]
    pruned: Mapping[str, int]

    def to_record(self) -> dict[str, Any]:
        """Write the change under the keys of records and checkpoints."""
        return {"step": self.step, "came": dict(self.grown), "went": dict(self.pruned)}


class Rewiring:
    """Moves the active set of a network while any trainer trains it.

    Call `advance` after every step of the optimiser.

    Args:
        network: The network.
        optimiser: Whose state follows the weights: momentum, Adam's moments.
        schedule: When and how much.
        removal: The score that decides which weights go.

    Raises:
        ArgumentError: If the score is unknown.
    """

    def __init__(
        self,
        network: SparseNetwork,
        optimiser: torch.optim.Optimizer,
        schedule: Schedule,
        *,
        removal: Removal = "snr",
    ) -> None:
        if removal not in PRUNING_SCORES:
            allowed = ", ".join(repr(each) for each in PRUNING_SCORES)
            raise ArgumentError(f"removal must be one of {allowed}, got {removal!r}.")
        self.network = network
        self.optimiser = optimiser
        self.schedule = schedule
        self.removal: Removal = removal
        self.step = 0

    def advance(self, losses: Callable[[], Iterable[Loss]]) -> ActiveSetChange | None:
        """Count a step, and move the active set if it is time.

        Args:
            losses: Called only then; yields functions that compute the mean loss of a
                batch without the KL term, with fresh noise each.

        Returns:
            What moved, or None; also if there is no loss.
        """
        self.step += 1
        share = self.schedule.replaced(self.step)
        if share <= 0 or self.network.count == self.network.total:
            return None
        layers = dict(self.network.layers)
        if self.network.budget != "global":
            # A whole layer has no weight that could come.
            layers = {
                n: part for n, part in layers.items() if part.pattern.indices is not None
            }
        staying = self._kept(layers, share)
        if not any(
            len(staying[name]) < part.pattern.count for name, part in layers.items()
        ):
            return None
        passes = list(losses())
        if not passes:
            # Without a loss there is nothing to tell who may come.
            return None
        taps = tap_gradients(self.network.model, layers, passes)
        came = self._coming(layers, taps, staying)
        went = {name: layers[name].pattern.count - len(staying[name]) for name in layers}
        for name, part in layers.items():
            change_active_set(part, torch.cat([staying[name], came[name]]), self.optimiser)
        return ActiveSetChange(self.step, {n: len(each) for n, each in came.items()}, went)

    def _kept(self, layers: Mapping[str, GaussianLayer], share: float) -> dict[str, Tensor]:
        """Indices that stay, ascending, of each layer."""
        scores = {
            name: log_score(part.means, part.log_scales, self.removal)
            for name, part in layers.items()
        }
        stay: int | dict[str, int]
        stay = {n: each.numel() - floor(share * each.numel()) for n, each in scores.items()}
        if self.network.budget == "global":
            total = sum(each.numel() for each in scores.values())
            stay = total - floor(share * total)
        masks = mark_survivors(scores, stay)
        return {
            name: layers[name].pattern.list_indices(mask.device)[mask]
            for name, mask in masks.items()
        }

    def _coming(
        self,
        layers: Mapping[str, GaussianLayer],
        taps: Mapping[str, GradientTap],
        staying: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """Indices that come, of each layer; as many in all as went."""
        free = {name: layers[name].pattern.count - len(staying[name]) for name in layers}
        if self.network.budget != "global":
            return {
                name: largest_gradients(part, taps[name], staying[name], free[name]).indices
                for name, part in layers.items()
            }
        total = sum(free.values())
        found: dict[str, Candidates] = {
            name: largest_gradients(part, taps[name], staying[name], total)
            for name, part in layers.items()
        }
        scores = torch.cat([each.scores for each in found.values()])
        wanted = torch.zeros_like(scores, dtype=torch.bool)
        wanted[scores.argsort(descending=True, stable=True)[:total]] = True
        masks = wanted.split([len(each.scores) for each in found.values()])
        return {
            name: each.indices[mask]
            for (name, each), mask in zip(found.items(), masks, strict=True)
        }


def change_active_set(
    part: GaussianLayer, indices: Tensor, optimiser: torch.optim.Optimizer | None = None
) -> None:
    """Give a layer another active set; weights of both sets keep value and momentum.

    Args:
        part: The layer.
        indices: The new active set.
        optimiser: Whose state of this layer's parameters follows.
    """
    old = part.pattern.list_indices(part.means.device)
    pattern = Pattern(part.pattern.rows, part.pattern.columns, indices)
    new = pattern.list_indices(part.means.device)
    place = torch.searchsorted(old, new).clamp_max(old.numel() - 1)
    known = old[place] == new

    def carried(values: Tensor, fresh: Tensor | float = 0.0) -> Tensor:
        taken = values.detach().index_select(0, place)
        return torch.where(known, taken, torch.as_tensor(fresh).to(taken))

    if optimiser is not None:
        for held in (part.means, part.log_scales):
            if held is not None:
                _carry_state(optimiser, held, carried)
    logs = None
    if part.log_scales is not None:
        mean = part.log_scales.detach().exp().mean().log()
        logs = carried(part.log_scales, mean)
    replace_values(part, pattern, carried(part.means), logs, optimiser)


def replace_values(
    part: GaussianLayer,
    pattern: Pattern,
    means: Tensor,
    log_scales: Tensor | None,
    optimiser: torch.optim.Optimizer | None,
) -> None:
    """Give a layer other weights; an optimiser goes on with its new parameters.

    Args:
        part: The layer.
        pattern: The active set.
        means: Its means.
        log_scales: Its log-scales, if the layer has any.
        optimiser: Holds the layer's parameters and, with the new sizes, their state.
    """
    before = (part.means, part.log_scales)
    part.move(pattern, means, log_scales)
    for old, new in zip(before, (part.means, part.log_scales), strict=True):
        if optimiser is None or old is None or new is None or old is new:
            continue
        for group in optimiser.param_groups:
            group["params"] = [new if each is old else each for each in group["params"]]
        if old in optimiser.state:
            optimiser.state[new] = optimiser.state.pop(old)


def _carry_state(
    optimiser: torch.optim.Optimizer,
    held: nn.Parameter,
    carried: Callable[[Tensor, Tensor | float], Tensor],
) -> None:
    state = optimiser.state.get(held, {})
    for key, value in state.items():
        # Counters stay; whatever has an entry for each weight follows it.
        if isinstance(value, Tensor) and value.dim() and value.shape == held.shape:
            state[key] = carried(value, value.mean() if key in _SECOND_MOMENTS else 0.0)
