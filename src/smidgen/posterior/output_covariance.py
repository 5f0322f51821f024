"""Covariance of a model's outputs under a posterior (DESIGN 4.3, 4.4).

For an example and a direction c of the outputs, J_c = Σ_t δ_t x_tᵀ on the chosen weights
and Cov[f_c, f_c'] = Σ_operators Σ_d J'_c,d J'_c',d / (h_d + τ). Operators are independent,
so the covariance is a sum of shares, and every τ comes from one pass. Shares are summed by
label: one label gives the posterior's covariance, one for each layer and size of block gives
the variance table.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from smidgen.curvature.operators import Operator
from smidgen.curvature.taps import Trace, tapped
from smidgen.errors import ArgumentError
from smidgen.outputs.problem import SettledProblem
from smidgen.types import Batch
from smidgen.weights.blocks import LayerBlock

# Weights 1/(h + τ) of all shares are kept between batches up to this many bytes.
KEPT_BYTES = 2**30
# What the covariances of all batches may take; beyond it the work is refused.
_MOST_BYTES = 4 * 2**30

Directions = Callable[[Tensor], Tensor]
"""From outputs (R, C) to the combinations of them whose covariance is wanted, (K, R, C)."""


@dataclass(frozen=True, eq=False)
class CovarianceTerm:
    """One operator's share of the covariance.

    Args:
        label: Which sum it joins.
        layers: The layers it spans.
        operator: Their curvature.
        precisions: Prior precisions, (P,).
        rows: Which rows of the tapped block it is of; None for all.
        columns: Which columns, the bias's among them; None for all.
    """

    label: Hashable
    layers: tuple[str, ...]
    operator: Operator
    precisions: Tensor
    rows: Tensor | None = None
    columns: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean outputs (R, C) and, by label, the covariance of K directions, (P, R, K, K).

    One covariance for each of P precisions, for unit noise. `targets` and `kept` are as
    in a trace. All on the CPU, outputs in fp64, covariances in the operators' type.
    """

    outputs: Tensor
    covariance: dict[Hashable, Tensor]
    targets: Tensor | None
    kept: Tensor

    @property
    def total(self) -> Tensor:
        """The sum over labels, in fp64: (P, R, K, K)."""
        return torch.stack([each.double() for each in self.covariance.values()]).sum(0)


def output_moments(
    problem: SettledProblem,
    batches: Iterable[Batch],
    blocks: Sequence[LayerBlock],
    shares: Sequence[CovarianceTerm],
    directions: Directions,
) -> list[Moments]:
    """Compute mean and covariance of the outputs, batch by batch.

    Args:
        problem: The problem, with its likelihood settled.
        batches: Any iterable of batches, read once.
        blocks: The chosen weights of each layer.
        shares: The shares of the covariance.
        directions: What of the outputs to follow.

    Returns:
        The moments of each batch. A list and not a generator: one that is left half-way
        would leave the model tapped.

    Raises:
        ArgumentError: If the covariances would fill the memory.
    """
    contractions = [_Contraction(share) for share in shares]
    _keep_what_fits(contractions)
    found: list[Moments] = []
    taken = 0
    with tapped(problem, blocks) as taps:
        for batch in batches:
            trace = taps.run(batch)
            # The caller's autocast is for the model's forward pass, not for our products.
            with torch.autocast(trace.outputs.device.type, enabled=False):
                found.append(_moments(trace, contractions, directions))
            # The next pass must not find these activations alive.
            del trace
            taken += sum(each.nbytes for each in found[-1].covariance.values())
            if taken > _MOST_BYTES:
                raise ArgumentError(
                    f"the outputs' covariances pass {_MOST_BYTES >> 30} GiB after "
                    f"{len(found)} batches: {len(shares[0].precisions)} precisions for "
                    "every pair of outputs. Pass fewer precisions, fewer examples, "
                    "or top= to follow the likeliest classes only."
                )
    return found


def _moments(
    trace: Trace, contractions: Sequence[_Contraction], directions: Directions
) -> Moments:
    outputs = trace.outputs.detach()
    # A copy: what a caller made in inference mode cannot be saved for backward.
    wanted = directions(outputs.double()).to(trace.outputs, copy=True)
    count, parts = trace.by_slot(wanted)
    found: dict[Hashable, Tensor] = {}
    for number, part in enumerate(parts):
        covariances = _covariances(trace, contractions, part, number + 1 < count)
        rows = part.any(-1).any(0)
        for label, covariance in covariances.items():
            if label not in found:
                shape = (len(covariance), len(outputs), *covariance.shape[2:])
                found[label] = covariance.new_zeros(shape)
            found[label][:, rows] = covariance
    return Moments(
        outputs.double().cpu(),
        {label: each.cpu() for label, each in found.items()},
        None if trace.targets is None else trace.targets.cpu(),
        trace.kept.cpu(),
    )


@dataclass(eq=False)
class _Contraction:
    """Turns Jacobians into covariances for every precision."""

    share: CovarianceTerm
    kept: Tensor | None = field(default=None)

    @property
    def bytes(self) -> int:
        operator, count = self.share.operator, len(self.share.precisions)
        return operator.values.numel() * count * operator.dtype.itemsize

    def weights(self) -> Tensor:
        if self.kept is not None:
            return self.kept
        return self.share.operator.inverse_weights(self.share.precisions)

    def covariance(self, trace: Trace, deltas: dict[str, Tensor]) -> Tensor | None:
        """From δ (K, B, T, n) of each layer to (P, B, K, K), or None if none ran."""
        share = self.share
        if not any(name in deltas for name in share.layers):
            return None
        leading = next(iter(deltas.values())).shape[:2]
        jacobians = [
            trace.jacobian(name, deltas[name]).restricted(share.rows, share.columns)
            if name in deltas
            else trace.without_runs(name, leading)
            for name in share.layers
        ]
        coordinates = share.operator.coordinates(*jacobians)  # (K, B, D)
        coordinates = coordinates.to(share.operator.dtype)
        weights = self.weights()
        count, batch = coordinates.shape[:2]
        found = coordinates.new_empty(weights.shape[1], batch, count, count)
        for k in range(count):
            for other in range(k + 1):
                products = (coordinates[k] * coordinates[other]) @ weights
                found[:, :, k, other] = found[:, :, other, k] = products.T
        return found


def _keep_what_fits(contractions: Iterable[_Contraction]) -> None:
    left = KEPT_BYTES
    for each in contractions:
        if each.bytes <= left:
            left -= each.bytes
            each.kept = each.weights()


def _covariances(
    trace: Trace, contractions: Sequence[_Contraction], directions: Tensor, more: bool
) -> dict[Hashable, Tensor]:
    """Sum the shares of one batch by label: (P, B, K, K) each."""
    pieces = [
        trace.deltas(direction, more=more or k + 1 < len(directions))
        for k, direction in enumerate(directions)
    ]
    deltas = {name: torch.stack([each[name] for each in pieces]) for name in pieces[0]}
    count = len(directions)
    found: dict[Hashable, Tensor] = {}
    for contraction in contractions:
        share = contraction.share
        covariance = contraction.covariance(trace, deltas)
        if covariance is None:
            shape = (len(share.precisions), trace.examples, count, count)
            covariance = share.operator.values.new_zeros(shape)
        if share.label in found:
            found[share.label] += covariance
        else:
            found[share.label] = covariance
    return found
