"""Residuals of a regression at the trained weights, and the noise that they tell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, DataError
from smidgen.outputs.likelihood import Gaussian
from smidgen.outputs.problem import Problem, SettledProblem
from smidgen.runtime.guard import preserve_model
from smidgen.types import Batch, Reduce


def sum_squared_residuals(
    problem: SettledProblem, batches: Iterable[Batch]
) -> tuple[Tensor, int]:
    """Sum the squared residuals for relative noise one, (C,) in fp64, and count the rows."""
    likelihood = problem.likelihood
    assert isinstance(likelihood, Gaussian)
    sums, rows = torch.zeros(likelihood.outputs, dtype=torch.float64), 0
    with preserve_model(problem.model), torch.no_grad():
        for number, batch in enumerate(batches, 1):
            with problem.reading(batch, number):
                outputs = problem.outputs(batch).flatten(0, -2)
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
