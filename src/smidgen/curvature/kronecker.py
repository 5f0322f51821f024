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

from smidgen.curvature.accumulate import (
    Accumulator,
    BackwardVectors,
    Curvatures,
    accumulate,
)
from smidgen.curvature.operators import Kronecker, Operator
from smidgen.curvature.taps import Trace
from smidgen.errors import ArgumentError
from smidgen.outputs.problem import SettledProblem
from smidgen.types import Batch, Shape
from smidgen.weights.blocks import LayerBlock

Approximation = Literal["expand", "reduce"]
APPROXIMATIONS: tuple[Approximation, ...] = ("expand", "reduce")


@dataclass(eq=False)
class _BlockSums:
    """Running sums of one block, in fp64; `count` divides the columns' sum."""

    rows: Tensor
    columns: Tensor
    count: Tensor


class KroneckerAccumulator(Accumulator):
    """Running sums of the factors A and G of all blocks."""

    def __init__(
        self,
        problem: SettledProblem,
        blocks: Sequence[LayerBlock],
        approximation: Approximation,
        columns: BackwardVectors | None = None,
    ) -> None:
        super().__init__(problem, blocks, columns)
        self.reduces = approximation == "reduce"
        zero = torch.zeros((), dtype=torch.float64, device=problem.device)
        self.blocks = {
            block.layer.name: _BlockSums(
                zero.new_zeros(self._shape(block.row_count)),
                zero.new_zeros(self._shape(block.column_count)),
                zero.clone(),
            )
            for block in blocks
        }

    @staticmethod
    def _shape(side: int) -> Shape:
        """The shape of what is summed of a factor."""
        return side, side

    @staticmethod
    def _product(tensor: Tensor) -> Tensor:
        """Sum what vectors (..., d) add to a factor."""
        return gram(tensor)

    def add_inputs(self, trace: Trace, name: str) -> None:
        """Add to A: over the positions that count, or over their means."""
        self._refuse_joined_outputs(trace)
        sums = self.blocks[name]
        x, used = trace.inputs(name), trace.used(name)  # (B, T, m), (B, T)
        lengths = torch.full((len(x),), x.shape[1], device=x.device)
        if used is not None:
            x, lengths = x * used[..., None].to(x.dtype), used.sum(1)
        if self.reduces:
            # Positions that do not count are zero in x, so the sum leaves them out.
            x = x.sum(1, keepdim=True, dtype=torch.float64)
            x = x / lengths.clamp_min(1)[:, None, None]
            sums.count += int((lengths > 0).sum())
        else:
            sums.count += int(lengths.sum())
        sums.columns += self._product(x)

    def add_deltas(self, trace: Trace, deltas: dict[str, Tensor]) -> None:
        """Add to G: over positions, or over their sums."""
        for name, delta in deltas.items():
            if self.reduces:
                delta = delta.sum(1, keepdim=True, dtype=torch.float64)
            self.blocks[name].rows += self._product(delta)  # of (B, 1, n) or (B, T, n)

    def running(self) -> list[Tensor]:
        """List both factors' sums of all blocks, and what divides them."""
        return [total for sums in self.blocks.values() for total in vars(sums).values()]

    def witnesses(self) -> list[Tensor]:
        """Diagonals are enough: |G_ij| is at most √(G_ii G_jj)."""
        return [t.diagonal() if t.dim() == 2 else t for t in self.running()]

    def _refuse_joined_outputs(self, trace: Trace) -> None:
        if self.reduces and trace.slots > 1 and self.columns.together:
            raise ArgumentError(
                "approximation must be 'expand' for fisher_draws with one output for each "
                "token, which go back together, got 'reduce'."
            )

    def factors(self, name: str, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return G (rows) and A (columns) of one layer."""
        sums = self.blocks[name]
        return sums.rows * scale, sums.columns / sums.count.clamp_min(1)

    def operators(self, scale: float) -> dict[str, Operator]:
        """Decompose the factors."""
        return {
            name: Kronecker.from_factors(*self.factors(name, scale)) for name in self.names
        }


def kronecker_factors(
    problem: SettledProblem,
    batches: Iterable[Batch],
    blocks: Sequence[LayerBlock],
    *,
    approximation: Approximation = "reduce",
    num_data: int | None = None,
) -> Curvatures:
    """Accumulate the factors of all blocks in one pass and decompose them, for unit noise."""
    sums = KroneckerAccumulator(problem, blocks, approximation)
    return accumulate(sums, problem, batches, blocks).finish(num_data)


def gram(tensor: Tensor) -> Tensor:
    """Σ v vᵀ over all leading axes: products in the tensor's type, the sum in fp64."""
    # A product in fp32 gives directions that the data say nothing about a curvature of 1e-7
    # of the largest, and at a small prior precision the evidence counts each of them. So
    # whatever is one vector an example comes in fp64; only `expand`, with a vector a position,
    # would take twice as long.
    flat = tensor.reshape(-1, tensor.shape[-1])
    return (flat.T @ flat).double()
