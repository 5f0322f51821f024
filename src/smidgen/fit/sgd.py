"""SGD with momentum on chosen weights, and the moments of its snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DivergedError
from smidgen.outputs.problem import SettledProblem
from smidgen.posterior.swag import (
    LEAST_SNAPSHOTS,
    CovarianceKind,
    Snapshots,
    check_covariance,
)
from smidgen.types import Batch
from smidgen.weights.subset import Subset
from smidgen.weights.vector import SubsetVector


@dataclass(frozen=True)
class SgdSettings:
    """How SGD runs and which of its iterates count."""

    steps: int = 2000
    every: int = 5
    rank: int = 20
    covariance: CovarianceKind = "low-rank"
    burn_in: int = 0
    momentum: float = 0.9
    weight_decay: float = 3e-4

    def __post_init__(self) -> None:
        check_covariance(self.covariance, self.rank)
        for name in ("steps", "every"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be 1 or more, got {getattr(self, name)}.")
        if not 0 <= self.burn_in < self.steps:
            raise ArgumentError(
                f"burn_in must be from 0 to steps − 1 = {self.steps - 1}, got "
                f"{self.burn_in}."
            )
        if not 0 <= self.momentum < 1 or not 0 <= self.weight_decay < inf:
            raise ArgumentError(
                "momentum must be in [0, 1) and weight_decay 0 or more, got "
                f"{self.momentum} and {self.weight_decay}."
            )

    def skipped(self, steps: int) -> int:
        """Steps before the first snapshot; a shorter run skips fewer."""
        return self.burn_in * steps // self.steps

    def require_snapshots(self, name: str, steps: int) -> None:
        """Refuse a run of `steps`, the argument `name`, with too few snapshots."""
        count = (steps - self.skipped(steps)) // self.every
        least = LEAST_SNAPSHOTS[self.covariance]
        if count < least:
            raise ArgumentError(
                f"a {self.covariance} posterior needs {least} snapshots or more, and "
                f"{name}={steps} with every={self.every} and burn_in={self.burn_in} gives "
                f"{count}. Take more steps, or a shorter interval."
            )


class Sgd:
    """One run of SGD from the trained weights, at one rate, for so many steps."""

    def __init__(
        self,
        problem: SettledProblem,
        subset: Subset,
        settings: SgdSettings,
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
        self.values = state["values"].to(self.values)
        self.velocity = state["velocity"].to(self.velocity)
        self.weights.assign(self.values)
        self.snapshots.restore(state)

    def _backward(self, batch: Batch, outputs: Tensor) -> int:
        self._require_finite(outputs, "outputs")
        found = self.problem.mean_nll(batch, outputs)
        if found is None:
            return 0
        loss, count = found
        loss.backward()
        return count

    def _require_finite(self, values: Tensor, what: str) -> None:
        if not bool(torch.isfinite(values).all()):
            raise DivergedError(
                f"the {what} are not finite after {self.step} steps. Lower learning_rate, "
                f"now {self.rate:g}, or check the data of this batch."
            )
