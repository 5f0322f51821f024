"""Covariance of a model's outputs under a posterior (DESIGN 4.3).

For an example and a direction c of the outputs, J_c = Σ_t δ_t x_tᵀ on the chosen rows and
columns and Cov[f_c, f_c'] = Σ_maps Σ_ij J'_c,ij J'_c',ij / (g_i a_j + τ). Blocks are
independent, so the covariance is a sum over maps, and every τ comes from one pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from smidgen.affine import MapBlock
from smidgen.curvature.taps import Trace, tapped
from smidgen.operators import Operator
from smidgen.problem import Problem
from smidgen.types import Batch

# Weights 1/(g a + τ) of all maps are kept between batches up to this many bytes.
_KEPT_BYTES = 256 * 2**20


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean outputs (B, C) and the covariance of K directions of them, (P, B, K, K).

    One covariance for each of P precisions, for unit noise. `targets` and `kept` are as
    in a trace. All on the CPU, covariances and outputs in fp64.
    """

    outputs: Tensor
    covariance: Tensor
    targets: Tensor | None
    kept: Tensor


def output_moments(
    problem: Problem,
    batches: Iterable[Batch],
    blocks: Sequence[MapBlock],
    operators: Mapping[str, Operator],
    *,
    directions: Tensor,
    precisions: Tensor,
) -> list[Moments]:
    """Compute mean and covariance of the outputs, batch by batch.

    Args:
        problem: The problem, with its likelihood settled.
        batches: Any iterable of batches, read once.
        blocks: The chosen rows and columns of each map.
        operators: The curvature of each map, by name.
        directions: Combinations of outputs whose covariance is wanted, (K, C).
        precisions: Prior precisions, (P,).

    Returns:
        The moments of each batch. A list and not a generator: one that is left half-way
        would leave the model tapped.
    """
    contractions = {
        name: _Contraction(operator, precisions) for name, operator in operators.items()
    }
    _keep_what_fits(contractions.values())
    with tapped(problem, blocks) as taps:
        return [_moments(taps.run(batch), contractions, directions) for batch in batches]


def _moments(
    trace: Trace, contractions: Mapping[str, _Contraction], directions: Tensor
) -> Moments:
    return Moments(
        trace.outputs.detach().double().cpu(),
        _covariance(trace, contractions, directions).cpu(),
        None if trace.targets is None else trace.targets.cpu(),
        trace.kept.cpu(),
    )


class _Contraction:
    """Turns one map's Jacobians into covariances for every precision."""

    def __init__(self, operator: Operator, precisions: Tensor) -> None:
        self.operator = operator
        self.precisions = precisions
        self.kept: Tensor | None = None

    @property
    def bytes(self) -> int:
        values = self.operator.values
        return values.numel() * len(self.precisions) * values.element_size()

    def weights(self) -> Tensor:
        if self.kept is not None:
            return self.kept
        return self.operator.inverse_weights(self.precisions)

    def covariance(self, deltas: Tensor, inputs: Tensor) -> Tensor:
        """From (K, B, T, n) and (B, T, m) to (P, B, K, K)."""
        kind = self.operator.dtype
        jacobians = self.operator.coordinates(deltas.to(kind), inputs.to(kind))
        jacobians = jacobians.flatten(2)  # (K, B, n·m)
        weights = self.weights()
        count, batch = jacobians.shape[:2]
        found = jacobians.new_empty(weights.shape[1], batch, count, count)
        for k in range(count):
            for other in range(k + 1):
                products = (jacobians[k] * jacobians[other]) @ weights
                found[:, :, k, other] = found[:, :, other, k] = products.T
        return found.double()


def _keep_what_fits(contractions: Iterable[_Contraction]) -> None:
    left = _KEPT_BYTES
    for each in contractions:
        if each.bytes <= left:
            left -= each.bytes
            each.kept = each.weights()


def _covariance(
    trace: Trace, contractions: Mapping[str, _Contraction], directions: Tensor
) -> Tensor:
    """Sum over the maps of one batch: (P, B, K, K)."""
    # A copy: what a caller made in inference mode cannot be saved for backward.
    directions = directions.to(trace.outputs, copy=True)
    deltas = [
        trace.deltas(direction.expand_as(trace.outputs), more=k + 1 < len(directions))
        for k, direction in enumerate(directions)
    ]
    count, batch = len(directions), len(trace.outputs)
    precisions = len(next(iter(contractions.values())).precisions)
    shape = (precisions, batch, count, count)
    total = trace.outputs.new_zeros(shape, dtype=torch.float64)
    for name, contraction in contractions.items():
        if trace.runs(name):
            stacked = torch.stack([each[name] for each in deltas])
            total += contraction.covariance(stacked, trace.inputs(name))
    return total
