"""Exact GGN factors of the chosen blocks in one pass over the data (DESIGN 4.2).

With M unpadded positions of N examples, `expand` has A = (1/M) Σ x xᵀ and G = Σ δ δᵀ
over positions; `reduce` has x̄ the mean and δ̄ the sum over the positions of an example,
A = (1/N) Σ x̄ x̄ᵀ and G = Σ δ̄ δ̄ᵀ. δ runs over the square-root columns of the likelihood's
Hessian: one backward pass for two classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from smidgen.curvature.accumulate import Accumulator, BackwardVectors
from smidgen.curvature.base import Operator
from smidgen.curvature.factors.factor_sum import FactorSum
from smidgen.curvature.factors.low_rank import cap_ranks
from smidgen.curvature.factors.operator import Kronecker
from smidgen.curvature.taps import Trace
from smidgen.errors import ArgumentError
from smidgen.outputs.problem import SettledProblem
from smidgen.weights.blocks import LayerBlock

Approximation = Literal["expand", "reduce"]
APPROXIMATIONS: tuple[Approximation, ...] = ("expand", "reduce")


@dataclass(eq=False)
class _BlockSums:
    """Running sums of one block; `count` divides the columns' sum."""

    rows: FactorSum
    columns: FactorSum
    count: Tensor


class KroneckerAccumulator(Accumulator):
    """Running sums of the factors A and G of all blocks.

    `rank` caps the factors' rank, by default that of very wide sides only; `whole` keeps all
    eigenvectors, whatever their number.
    """

    make_sum: type[FactorSum] = FactorSum

    def __init__(
        self,
        problem: SettledProblem,
        blocks: Sequence[LayerBlock],
        approximation: Approximation,
        columns: BackwardVectors | None = None,
        *,
        rank: int | None = None,
        whole: bool = False,
    ) -> None:
        super().__init__(problem, blocks, columns)
        self.reduces = approximation == "reduce"
        zero = torch.zeros((), dtype=torch.float64, device=problem.device)
        sides = [(block.row_count, block.column_count) for block in blocks]
        ranks = sides if whole else cap_ranks(sides, rank)
        self.blocks = {
            block.layer.name: _BlockSums(
                self.make_sum(block.row_count, most_rows, zero, whole=whole),
                self.make_sum(block.column_count, most_columns, zero, whole=whole),
                zero.clone(),
            )
            for block, (most_rows, most_columns) in zip(blocks, ranks, strict=True)
        }

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
        sums.columns.add(x)

    def add_deltas(self, trace: Trace, deltas: dict[str, Tensor]) -> None:
        """Add to G: over positions, or over their sums."""
        for name, delta in deltas.items():
            if self.reduces:
                delta = delta.sum(1, keepdim=True, dtype=torch.float64)
            self.blocks[name].rows.add(delta)  # (B, 1, n) or (B, T, n)

    def running(self) -> list[Tensor]:
        """List both factors' sums of all blocks, as squares, and what divides them."""
        # Squares can be added up over processes; rows of several would have to be gathered.
        return [
            tensor
            for sums in self.blocks.values()
            for factor in (sums.rows, sums.columns)
            for tensor in (factor.total(), factor.rest)
        ] + [sums.count for sums in self.blocks.values()]

    def witnesses(self) -> list[Tensor]:
        """What came last of each factor is enough."""
        return [
            factor.newest
            for sums in self.blocks.values()
            for factor in (sums.rows, sums.columns)
        ]

    def _refuse_joined_outputs(self, trace: Trace) -> None:
        if self.reduces and trace.slots > 1 and self.columns.together:
            raise ArgumentError(
                "approximation must be 'expand' for fisher_draws with one output for each "
                "token, which go back together, got 'reduce'."
            )

    def decompose(
        self,
        name: str,
        scale: float = 1.0,
        rows: Tensor | None = None,
        columns: Tensor | None = None,
    ) -> Kronecker:
        """Decompose G and A of one layer, or of some of its rows and columns."""
        sums = self.blocks[name]
        return Kronecker.from_spectra(
            sums.rows.restrict(rows).decompose(scale),
            sums.columns.restrict(columns).decompose(count=sums.count.clamp_min(1)),
        )

    def operators(self, scale: float) -> dict[str, Operator]:
        """Decompose the factors."""
        return {name: self.decompose(name, scale) for name in self.names}
