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
from smidgen.errors import DataError
from smidgen.operators import Kronecker
from smidgen.problem import Problem
from smidgen.types import Batch

Approximation = Literal["expand", "reduce"]
APPROXIMATIONS: tuple[Approximation, ...] = ("expand", "reduce")


@dataclass(eq=False)
class _Sums:
    """Running sums of one block, in fp64."""

    rows: Tensor
    columns: Tensor
    count: int = 0

    @classmethod
    def zero(cls, block: MapBlock, device: torch.device) -> _Sums:
        empty = torch.empty(0, dtype=torch.float64, device=device)
        n, m = block.row_count, block.column_count
        return cls(empty.new_zeros(n, n), empty.new_zeros(m, m))


@dataclass(frozen=True, eq=False)
class Factors:
    """What one pass over the data gives: the curvature of each map, and counts.

    `squared_residual` is the mean over examples and outputs, for regression.
    """

    operators: dict[str, Kronecker]
    num_data: int
    squared_residual: float | None
    idle: tuple[str, ...]


def kronecker_factors(
    problem: Problem,
    batches: Iterable[Batch],
    blocks: Sequence[MapBlock],
    *,
    approximation: Approximation = "expand",
    num_data: int | None = None,
) -> Factors:
    """Accumulate the factors of all blocks and decompose them.

    Args:
        problem: The problem, with its likelihood settled.
        batches: Any iterable of batches, read once.
        blocks: The chosen rows and columns of each map.
        approximation: How positions that share weights are treated.
        num_data: Size of the whole data set if `batches` is a sample of it.

    Returns:
        The curvature of each map, for unit noise.

    Raises:
        DataError: If no example has a target.
    """
    sums = {b.map.name: _Sums.zero(b, problem.device) for b in blocks}
    seen, squares = 0, 0.0
    with tapped(problem, blocks) as taps:
        for batch in batches:
            trace = taps.run(batch)
            _add_inputs(trace, sums, approximation)
            _add_deltas(trace, problem, sums, approximation)
            seen += int(trace.kept.sum())
            squares += _squared_residual(trace)
            # The next forward pass must not find this one's activations still alive.
            del trace
    if not seen:
        raise DataError("no example has a label (all are -100). Pass labelled data.")
    scale = (num_data or seen) / seen
    operators = {
        name: Kronecker.from_factors(each.rows * scale, each.columns / max(each.count, 1))
        for name, each in sums.items()
    }
    idle = tuple(name for name, each in sums.items() if not each.count)
    outputs = problem.likelihood.outputs if problem.likelihood else 1
    return Factors(operators, num_data or seen, squares / (seen * outputs), idle)


def _add_inputs(trace: Trace, sums: dict[str, _Sums], how: Approximation) -> None:
    for name, each in sums.items():
        if not trace.runs(name):
            continue
        x, lengths = trace.inputs(name), trace.lengths(name)
        if not trace.kept.all():
            x, lengths = x[trace.kept], lengths[trace.kept]
        if how == "reduce":
            # Padding is zero in x, so the sum over positions leaves it out.
            x = x.sum(1, keepdim=True) / lengths.clamp_min(1)[:, None, None]
            each.count += len(x)
        else:
            each.count += int(lengths.sum())
        each.columns += _gram(x)


def _add_deltas(
    trace: Trace, problem: Problem, sums: dict[str, _Sums], how: Approximation
) -> None:
    assert problem.likelihood is not None
    columns = problem.likelihood.root_columns(trace.outputs.detach())
    columns = columns * trace.kept[:, None]
    for k, column in enumerate(columns):
        deltas = trace.deltas(column, more=k + 1 < len(columns))
        for name, delta in deltas.items():
            if how == "reduce":
                delta = delta.sum(1, keepdim=True)
            sums[name].rows += _gram(delta)


def _gram(tensor: Tensor) -> Tensor:
    """Σ v vᵀ over all leading axes: products in the tensor's type, the sum in fp64."""
    flat = tensor.reshape(-1, tensor.shape[-1])
    return (flat.T @ flat).double()


def _squared_residual(trace: Trace) -> float:
    if trace.targets is None or not trace.targets.is_floating_point():
        return 0.0
    targets = trace.targets.reshape(trace.outputs.shape)
    residuals = (targets - trace.outputs.detach())[trace.kept]
    return float(residuals.double().square().sum())
