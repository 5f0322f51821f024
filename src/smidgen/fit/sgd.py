"""SGD with momentum on chosen weights: its settings, its steps and its snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DivergedError, StoreError, is_whole
from smidgen.fit.epochs import backward
from smidgen.fit.training_run import check_save_every
from smidgen.outputs.problem import SettledProblem
from smidgen.posterior.base import SAMPLES
from smidgen.posterior.swag import (
    LEAST_SNAPSHOTS,
    CovarianceKind,
    Snapshots,
    check_covariance,
)
from smidgen.runtime.artifact import require_like
from smidgen.types import Batch
from smidgen.weights.subset import Subset
from smidgen.weights.vector import SubsetVector

RATES: tuple[float, ...] = (1e-3, 1e-2, 2e-2, 5e-2, 1e-1)
"""Learning rates to choose from by validation data."""
_RATE = 1e-2


@dataclass(frozen=True)
class SwagSettings:
    """How SGD runs, and which of its iterates make the posterior.

    Args:
        steps: Steps of SGD, however long an epoch is.
        every: Steps between snapshots.
        rank: Deviations kept, K.
        covariance: "low-rank" ((K + 2) floats a weight), "diagonal" (2) or "none" (1: the
            mean alone, stochastic weight averaging).
        burn_in: Steps before the first snapshot counts.
        momentum: Of SGD.
        weight_decay: Of SGD, towards zero, on the chosen weights only.
        learning_rate: One rate, or several to choose from by validation data. Default:
            `RATES` if there are validation data, else 0.01.
        trial_steps: Steps for each rate that is tried; never more than `steps`.
        dropout: Whether dropout is on; running statistics never change.
        samples: Samples of the weights that score a rate.
        checkpoint_every: Steps between checkpoints.

    Raises:
        ArgumentError: If a setting is out of its range.
    """

    steps: int = 2000
    every: int = 5
    rank: int = 20
    covariance: CovarianceKind = "low-rank"
    burn_in: int = 0
    momentum: float = 0.9
    weight_decay: float = 3e-4
    learning_rate: float | Sequence[float] | None = None
    trial_steps: int = 400
    dropout: bool = True
    samples: int = SAMPLES
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        check_covariance(self.covariance, self.rank)
        for name in ("steps", "every", "trial_steps"):
            value, usual = getattr(self, name), getattr(type(self), name)
            if not is_whole(value) or value < 1:
                raise ArgumentError(
                    f"{name} must be 1 or more, got {value!r}. Try {usual}."
                )
        if not 0 <= self.burn_in < self.steps:
            raise ArgumentError(
                f"burn_in must be from 0 to steps − 1 = {self.steps - 1}, got "
                f"{self.burn_in}."
            )
        if not 0 <= self.momentum < 1 or not 0 <= self.weight_decay < inf:
            raise ArgumentError(
                "momentum must be in [0, 1) and weight_decay 0 or more, got "
                f"{self.momentum} and {self.weight_decay}. Try 0.9 and 3e-4."
            )
        check_save_every(self.checkpoint_every)
        self._require_snapshots("steps", self.steps)

    def rates(self, *, choosing: bool) -> tuple[float, ...]:
        """The rates to try if validation data can choose among them, or the one to take."""
        default = RATES if choosing else (_RATE,)
        rates = default if self.learning_rate is None else _as_rates(self.learning_rate)
        if not rates or (len(rates) > 1 and not choosing):
            raise ArgumentError(
                f"learning_rate must be one rate, or several with validation= to choose by, "
                f"got {self.learning_rate!r}. Pass validation batches, or one rate."
            )
        if not all(0 < rate < inf for rate in rates):
            raise ArgumentError(
                f"learning_rate must be > 0, got {list(rates)}. Try {_RATE}."
            )
        if len(rates) > 1:
            self._require_snapshots("trial_steps", min(self.trial_steps, self.steps))
            if self.samples < 2:
                raise ArgumentError(f"samples must be 2 or more, got {self.samples}.")
        return rates

    def skipped(self, steps: int) -> int:
        """Steps before the first snapshot; a shorter run skips fewer."""
        return self.burn_in * steps // self.steps

    def _require_snapshots(self, name: str, steps: int) -> None:
        """Refuse a run of `steps`, the argument `name`, with too few snapshots."""
        count = (steps - self.skipped(steps)) // self.every
        least = LEAST_SNAPSHOTS[self.covariance]
        if count < least:
            raise ArgumentError(
                f"a {self.covariance} posterior needs {least} snapshots or more, and "
                f"{name}={steps} with every={self.every} and burn_in={self.burn_in} gives "
                f"{count}. Take more steps, or a shorter interval."
            )


def _as_rates(learning_rate: object) -> tuple[float, ...]:
    try:
        several = isinstance(learning_rate, Sequence) and not isinstance(learning_rate, str)
        listed = learning_rate if several else [learning_rate]
        return tuple(float(rate) for rate in listed if not isinstance(rate, str))  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"learning_rate must be a number or several, got {learning_rate!r}."
        ) from error


class Sgd:
    """One run of SGD from the trained weights, at one rate, for so many steps."""

    def __init__(
        self,
        problem: SettledProblem,
        subset: Subset,
        settings: SwagSettings,
        rate: float,
        steps: int,
    ) -> None:
        self.problem, self.settings, self.rate = problem, settings, rate
        self.skipped = settings.skipped(steps)
        self.weights = SubsetVector(problem.model, subset)
        # The weights as SGD has them; a bf16 model sees them rounded.
        self.values = self.weights.values
        self.velocity = torch.zeros_like(self.values)
        self.snapshots = Snapshots(
            subset.size, settings.rank, settings.covariance, self.values
        )
        self.step = 0

    def take(self, batch: Batch) -> int:
        """Take one step and return the number of examples."""
        settings = self.settings
        count = self.problem.within(
            batch, self.weights.tensors, lambda outputs: self._backward(batch, outputs)
        )
        if count:
            self.velocity *= settings.momentum
            self.velocity += self.weights.gradient() + settings.weight_decay * self.values
            self.values = self.values - self.rate * self.velocity
            self._require_finite(self.values, "weights")
            self.weights.assign(self.values)
        self.step += 1
        if self.step > self.skipped and (self.step - self.skipped) % settings.every == 0:
            self.snapshots.add(self.values)
        return count

    def state(self) -> dict[str, Tensor]:
        """All that the next step depends on."""
        return {
            "step": torch.tensor(self.step),
            "values": self.values,
            "velocity": self.velocity,
            **self.snapshots.state(),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from an earlier state."""
        self.step = int(state["step"])
        for name in ("values", "velocity"):
            now = getattr(self, name)
            setattr(self, name, require_like(name, state[name], now).to(now))
        self.weights.assign(self.values)
        self.snapshots.restore(state)
        due = max(0, self.step - self.skipped) // self.settings.every
        if self.step < 0 or self.snapshots.count != due:
            raise StoreError(
                f"{self.step} steps cannot have {self.snapshots.count} snapshots"
            )

    def _backward(self, batch: Batch, outputs: Tensor) -> int:
        self._require_finite(outputs, "outputs")
        return backward(self.problem, batch, outputs)[1]

    def _require_finite(self, values: Tensor, what: str) -> None:
        if not bool(torch.isfinite(values).all()):
            raise DivergedError(
                f"the {what} are not finite after {self.step} steps. Lower learning_rate, "
                f"now {self.rate:g}, or check the data of this batch."
            )
