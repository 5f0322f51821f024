"""Residuals of a regression, and the noise that they tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.likelihood import Gaussian
from smidgen.outputs.problem import Problem, SettledProblem
from smidgen.runtime.guard import preserve_random_state
from smidgen.types import Batch, Reduce


def sum_squared_residuals(
    problem: SettledProblem,
    batches: Iterable[Batch],
    replaced: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, int]:
    """Sum the squared residuals for relative noise one, (C,) in fp64, and count the rows."""
    # At the model's own weights, but for those `replaced`, by name.
    likelihood = problem.likelihood
    assert isinstance(likelihood, Gaussian)
    sums, rows = torch.zeros(likelihood.outputs, dtype=torch.float64), 0
    shadowed = problem.on_shadow()
    with preserve_random_state(problem.model), torch.no_grad():
        for number, batch in enumerate(batches, 1):
            with problem.reading(batch, number):
                outputs = shadowed.outputs(batch, replaced).flatten(0, -2)
                targets, kept = problem.read(batch, outputs)
            if targets is not None:
                sums += likelihood.squares(outputs[kept], targets[kept]).sum(0).cpu()
                rows += int(kept.sum())
    return sums, rows


def fit_relative_noise(
    problem: Problem, batches: Iterable[Batch], reduce: Reduce | None
) -> Problem:
    """Fit the relative noise of each output to the residuals, in a pass of its own."""
    settled, _, _ = problem.settle(batches)
    if not isinstance(settled.likelihood, Gaussian):
        raise ArgumentError("noise='per-output' is for regression. Leave it out.")
    plain = replace(settled.likelihood, relative=None)
    squares, _ = sum_squared_residuals(replace(settled, likelihood=plain), batches)
    if reduce is not None:
        squares = reduce(squares.to(problem.device)).cpu()
    if not (squares > 0).all():
        raise DataError(
            "noise='per-output' needs targets that differ from every output, got squared "
            f"residuals {squares.tolist()}. Use noise='scalar'."
        )
    logs = squares.log()
    relative = tuple((logs - logs.mean()).exp().tolist())
    return replace(settled, likelihood=replace(plain, relative=relative))


class RunningNoise:
    """The noise of a regression along its training: of residuals that count ever less.

    The noise that maximises an ELBO is the mean squared residual under draws of the weights.
    It is of all outputs together, or of each where the likelihood has relative noises.
    `steps` is over how many of them a residual's weight falls to 1/e.
    """

    def __init__(self, likelihood: Gaussian, steps: int) -> None:
        self.plain = replace(likelihood, noise=1.0, relative=None)
        self.each = likelihood.relative is not None
        self.kept = 1 - 1 / max(steps, 2)
        self.squares = torch.zeros(likelihood.outputs, dtype=torch.float64)
        self.rows = torch.zeros((), dtype=torch.float64)

    def add(self, outputs: Tensor, targets: Tensor) -> Gaussian:
        """Count the residuals of one step, (R, C); return the likelihood with their noise."""
        squares = self.plain.squares(outputs, targets).sum(0).cpu()
        self.squares = self.kept * self.squares + squares
        self.rows = self.kept * self.rows + len(outputs)
        return self.likelihood()

    def likelihood(self) -> Gaussian:
        """The likelihood with the noise so far."""
        noises = self.squares / self.rows
        if not ((noises if self.each else noises.mean()) > 0).all():
            raise DataError("all residuals are zero: there is no noise to fit.")
        if not self.each:
            return replace(self.plain, noise=float(noises.mean()))
        return replace(self.plain, relative=tuple(noises.tolist()))

    def state(self) -> dict[str, Tensor]:
        """List the tensors that `restore` takes."""
        return {"squares": self.squares, "rows": self.rows}

    def restore(self, state: Mapping[str, Tensor]) -> Gaussian:
        """Continue from a state; return the likelihood with its noise."""
        squares, rows = state["squares"], state["rows"]
        if squares.shape != self.squares.shape or rows.shape != self.rows.shape:
            raise ValueError(f"noise of {squares.numel()} outputs")
        self.squares, self.rows = squares.double(), rows.double()
        return self.likelihood()
