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
    """Sum up the squared residuals of a regression at the trained weights.

    Args:
        problem: The problem, its likelihood Gaussian.
        batches: Batches; rows without a target do not count.

    Returns:
        Sums for relative noise one, (C,), in fp64 on the CPU, and the number of rows.
    """
    likelihood = problem.likelihood
    assert isinstance(likelihood, Gaussian)
    sums, rows = torch.zeros(likelihood.outputs, dtype=torch.float64), 0
    with preserve_model(problem.model), torch.no_grad():
        for batch in batches:
            outputs = problem.outputs(batch).flatten(0, -2)
            targets, kept = problem.read(batch, outputs)
            if targets is not None:
                sums += likelihood.squares(outputs[kept], targets[kept]).sum(0).cpu()
                rows += int(kept.sum())
    return sums, rows


def fit_relative_noise(
    problem: Problem, batches: Iterable[Batch], reduce: Reduce | None
) -> Problem:
    """Fit the relative noise of the outputs to the residuals, in a pass of its own.

    Args:
        problem: The problem; its likelihood is settled by the first batch.
        batches: Batches that can be read again.
        reduce: Adds a tensor up over all processes, if each has a part of the batches.

    Returns:
        The problem, its likelihood with a noise for each output.

    Raises:
        ArgumentError: If it is no regression.
        DataError: If an output has no residual.
    """
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
