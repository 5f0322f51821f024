"""Covariance of a model's outputs under a posterior (DESIGN 4.3, 4.4).

For an example and a direction c of the outputs, J_c = Σ_t δ_t x_tᵀ on the chosen weights
and Cov[f_c, f_c'] = Σ_operators Σ_d J'_c,d J'_c',d / (h_d + τ). Operators are independent,
so the covariance is a sum of terms, and one pass gives it for every τ. Terms are summed by
label: one label gives the posterior's covariance, one for each layer and size of block gives
the variance table.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from smidgen.curvature.base import Operator
from smidgen.curvature.taps import Tapped, Trace, tapped
from smidgen.errors import ArgumentError, DataError, warn
from smidgen.outputs.problem import SettledProblem
from smidgen.types import Batch
from smidgen.weights.blocks import LayerBlock

# Weights 1/(h + τ) of all terms are kept between batches up to this many bytes.
KEPT_BYTES = 2**30
# The most that the covariances of all batches may take.
_MOST_BYTES = 4 * 2**30
# More backward passes a batch than that are told before they are made.
_MANY_PASSES = 200

_Made = TypeVar("_Made")
Directions = Callable[[Tensor], Tensor]
"""From outputs (R, C) to the combinations of them whose covariance to compute, (K, R, C)."""


@dataclass(frozen=True, eq=False)
class CovarianceTerm:
    """One operator's term of the covariance."""

    label: Hashable  # of the sum it joins
    layers: tuple[str, ...]
    operator: Operator
    precisions: Tensor  # (P,)
    rows: Tensor | None = None  # which of the tapped block it covers; None for all
    columns: Tensor | None = None  # likewise, counting the bias as the first
    cached: Tensor | None = None  # the weights 1/(h + τ) of all coordinates, (E, P)

    @property
    def bytes(self) -> int:
        """How much memory its weights take."""
        values = self.operator.values
        return values.numel() * len(self.precisions) * values.itemsize

    def weights(self) -> Tensor:
        """Variances of the operator's coordinates, (E, P)."""
        if self.cached is not None:
            return self.cached
        return self.operator.inverse_weights(self.precisions)

    def covariance(self, trace: Trace, deltas: dict[str, Tensor]) -> Tensor | None:
        """From δ (K, B, T, n) of each layer to (P, B, K, K), or None if none ran."""
        if not any(name in deltas for name in self.layers):
            return None
        leading = next(iter(deltas.values())).shape[:2]
        jacobians = [
            trace.jacobian(name, deltas[name]).restricted(self.rows, self.columns)
            if name in deltas
            else trace.without_runs(name, leading)
            for name in self.layers
        ]
        return self.operator.covariance(jacobians, self.precisions, self.weights())


def cache_weights(terms: Iterable[CovarianceTerm]) -> list[CovarianceTerm]:
    """Compute the weights of terms once, for all batches, as far as memory allows."""
    left, cached = KEPT_BYTES, []
    for term in terms:
        if term.cached is None and term.bytes <= left:
            left -= term.bytes
            term = replace(term, cached=term.weights())
        cached.append(term)
    return cached


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
        return torch.stack([term.double() for term in self.covariance.values()]).sum(0)


def output_moments(
    problem: SettledProblem,
    batches: Iterable[Batch],
    blocks: Sequence[LayerBlock],
    terms: Sequence[CovarianceTerm],
    directions: Directions,
) -> list[Moments]:
    """Compute mean and covariance of the outputs, batch by batch."""
    with tapped(problem, blocks) as taps:
        return map_moments(taps, batches, terms, directions, lambda moments: moments)


def map_moments(
    taps: Tapped,
    batches: Iterable[Batch],
    terms: Sequence[CovarianceTerm],
    directions: Directions,
    use: Callable[[Moments], _Made],
) -> list[_Made]:
    """Make something of the moments of each batch, before those of the next are there."""
    terms = cache_weights(terms)
    # A list: a generator that is left half-way would leave the model tapped.
    made: list[_Made] = []
    taken = 0
    for number, batch in enumerate(batches, 1):
        with taps.problem.reading(batch, number):
            trace = taps.run(batch)
            # The caller's autocast is for the model's forward pass, not for our products.
            with torch.autocast(trace.outputs.device.type, enabled=False):
                moments = _compute_moments(trace, terms, directions, tell=number == 1)
            # The next pass must not find these activations alive.
            del trace
            _require_finite(moments)
        taken += sum(term.nbytes for term in moments.covariance.values())
        if taken > _MOST_BYTES:
            raise ArgumentError(
                f"the outputs' covariances exceed {_MOST_BYTES >> 30} GiB after "
                f"{number} batches: {len(terms[0].precisions)} precisions for "
                "every pair of outputs. Pass fewer precisions, fewer examples, "
                "or top= to follow the likeliest classes only."
            )
        made.append(use(moments))
    return made


def _require_finite(moments: Moments) -> None:
    """Refuse variances that are NaN or infinite, before a link makes probabilities of them."""
    if not all(torch.isfinite(term.sum()) for term in moments.covariance.values()):
        raise DataError(
            "the outputs' covariance must be finite, got NaN or infinity: what the chosen "
            "layers are given is not finite or too large, or the posterior is damaged. Check "
            "this batch's inputs, or fit the posterior again."
        )


def _compute_moments(
    trace: Trace,
    terms: Sequence[CovarianceTerm],
    directions: Directions,
    *,
    tell: bool = False,
) -> Moments:
    outputs = trace.outputs.detach()
    # A copy: what a caller made in inference mode cannot be saved for backward.
    followed = directions(outputs).to(trace.outputs, copy=True)
    count, parts = trace.by_slot(followed)
    totals: dict[Hashable, Tensor] = {}
    if trace.slots == 1:
        totals = _sum_by_label(trace, terms, followed, False)
        parts = iter(())
    elif tell and count * len(followed) > _MANY_PASSES:
        warn(
            f"every batch takes {count * len(followed):,} backward passes, {len(followed)} for "
            f"each of {count:,} positions. For the output layer of a language model alone, "
            "smidgen.integrations.answers.next_tokens.make_next_token_problem needs none."
        )
    for number, part in enumerate(parts):
        rows = part.any(-1).any(0)
        sums = _sum_by_label(trace, terms, part, number + 1 < count)
        for label, covariance in sums.items():
            if label not in totals:
                shape = (len(covariance), len(outputs), *covariance.shape[2:])
                totals[label] = covariance.new_zeros(shape)
            totals[label][:, rows] = covariance
    return Moments(
        outputs.double().cpu(),
        {label: total.cpu() for label, total in totals.items()},
        None if trace.targets is None else trace.targets.cpu(),
        trace.kept.cpu(),
    )


def _sum_by_label(
    trace: Trace, terms: Sequence[CovarianceTerm], directions: Tensor, more: bool
) -> dict[Hashable, Tensor]:
    """Sum the terms of one batch by label: (P, B, K, K) each."""
    deltas = trace.all_deltas(directions, more=more)
    count = len(directions)
    sums: dict[Hashable, Tensor] = {}
    for term in terms:
        covariance = term.covariance(trace, deltas)
        if covariance is None:
            shape = (len(term.precisions), trace.examples, count, count)
            covariance = term.operator.values.new_zeros(shape)
        if term.label in sums:
            sums[term.label] += covariance
        else:
            sums[term.label] = covariance
    return sums
