"""Exact GGN factors of the chosen blocks in one pass over the data (DESIGN 4.2).

With M unpadded positions of N examples, `expand` has A = (1/M) Σ x xᵀ and G = Σ δ δᵀ
over positions; `reduce` has x̄ the mean and δ̄ the sum over the positions of an example,
A = (1/N) Σ x̄ x̄ᵀ and G = Σ δ̄ δ̄ᵀ. δ runs over the square-root columns of the likelihood's
Hessian: one backward pass for two classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from smidgen.affine import MapBlock
from smidgen.curvature.taps import Trace, tapped
from smidgen.errors import ArgumentError, DataError
from smidgen.likelihood import Gaussian, Likelihood
from smidgen.operators import Kronecker
from smidgen.problem import Problem
from smidgen.types import Batch

Approximation = Literal["expand", "reduce"]
APPROXIMATIONS: tuple[Approximation, ...] = ("expand", "reduce")


@dataclass(frozen=True, eq=False)
class Factors:
    """What one pass over the data gives: the curvature of each map, and counts.

    `squared_residual` is the mean over examples and outputs, for regression; `idle` are
    the chosen maps that never ran.
    """

    operators: dict[str, Kronecker]
    num_data: int
    squared_residual: float
    idle: tuple[str, ...]


@dataclass(eq=False)
class _BlockSums:
    """Running sums of one block, in fp64; `count` divides the columns' sum."""

    rows: Tensor
    columns: Tensor
    count: int = 0


class FactorSums:
    """Running sums of the factors of all blocks: `add` traces, then `finish`."""

    def __init__(
        self, problem: Problem, blocks: Sequence[MapBlock], approximation: Approximation
    ) -> None:
        assert problem.likelihood is not None
        self.likelihood: Likelihood = problem.likelihood
        self.reduces = approximation == "reduce"
        self.seen, self.squares = 0, 0.0
        zero = torch.zeros((), dtype=torch.float64, device=problem.device)
        self.blocks = {
            block.map.name: _BlockSums(
                zero.new_zeros(block.row_count, block.row_count),
                zero.new_zeros(block.column_count, block.column_count),
            )
            for block in blocks
        }

    def add(self, trace: Trace) -> None:
        """Add one batch: its inputs once, its δ for every square-root column."""
        for name, sums in self.blocks.items():
            if trace.runs(name):
                self._add_inputs(sums, trace, name)
        columns = self.likelihood.root_columns(trace.outputs.detach())
        columns = columns * trace.kept[:, None]
        for k, column in enumerate(columns):
            deltas = trace.deltas(column, more=k + 1 < len(columns))
            for name, delta in deltas.items():
                delta = delta.sum(1, keepdim=True) if self.reduces else delta
                self.blocks[name].rows += _gram(delta)
        self.seen += int(trace.kept.sum())
        if isinstance(self.likelihood, Gaussian):
            self.squares += _squared_residual(trace)

    def _add_inputs(self, sums: _BlockSums, trace: Trace, name: str) -> None:
        x, lengths = trace.inputs(name, masked=True), trace.lengths(name)
        if not trace.kept.all():
            x, lengths = x[trace.kept], lengths[trace.kept]
        if self.reduces:
            # Padding is zero in x, so the sum over positions leaves it out.
            x = x.sum(1, keepdim=True) / lengths.clamp_min(1)[:, None, None]
            sums.count += len(x)
        else:
            sums.count += int(lengths.sum())
        sums.columns += _gram(x)

    def finish(self, num_data: int | None = None) -> Factors:
        """Decompose the factors.

        Args:
            num_data: Size of the whole data set if the traces are of a sample of it.

        Returns:
            The curvature of each map, for unit noise.

        Raises:
            ArgumentError: If num_data is below 1.
            DataError: If no example had a target.
        """
        if num_data is not None and num_data < 1:
            raise ArgumentError(f"num_data must be 1 or more, got {num_data}.")
        if not self.seen:
            raise DataError("no example has a label (all are -100). Pass labelled data.")
        total = num_data or self.seen
        return Factors(
            {
                name: Kronecker.from_factors(
                    sums.rows * (total / self.seen), sums.columns / max(sums.count, 1)
                )
                for name, sums in self.blocks.items()
            },
            total,
            self.squares / (self.seen * self.likelihood.outputs),
            tuple(name for name, sums in self.blocks.items() if not sums.count),
        )


def kronecker_factors(
    problem: Problem,
    batches: Iterable[Batch],
    blocks: Sequence[MapBlock],
    *,
    approximation: Approximation = "reduce",
    num_data: int | None = None,
) -> Factors:
    """Accumulate the factors of all blocks in one pass and decompose them.

    Args:
        problem: The problem, with its likelihood settled.
        batches: Any iterable of batches, read once.
        blocks: The chosen rows and columns of each map.
        approximation: How positions that share weights are treated.
        num_data: Size of the whole data set if `batches` is a sample of it.

    Returns:
        The curvature of each map, for unit noise.
    """
    sums = FactorSums(problem, blocks, approximation)
    with tapped(problem, blocks) as taps:
        for batch in batches:
            # Not kept in a name: the next pass must not find these activations alive.
            sums.add(taps.run(batch))
    return sums.finish(num_data)


def _gram(tensor: Tensor) -> Tensor:
    """Σ v vᵀ over all leading axes: products in the tensor's type, the sum in fp64."""
    flat = tensor.reshape(-1, tensor.shape[-1])
    return (flat.T @ flat).double()


def _squared_residual(trace: Trace) -> float:
    if trace.targets is None:
        return 0.0
    residuals = (trace.targets - trace.outputs.detach())[trace.kept]
    return float(residuals.double().square().sum())
