"""Which active weights to prune: those with the lowest scores of N(μ, σ²), in log space.

Every score is computed in fp64 from |μ| and log σ and is finite for every input, so no
weight is lost to an overflow (the released code's exponential score is NaN for some
weights). With r = |μ|/σ, s = lσ and l = 1:

    magnitude         |μ|
    snr               |μ|/σ, of which E|θ|/sd|θ| is an increasing function
    expected          E|θ| = σ f(r),  f(r) = r erf(r/√2) + √(2/π) e^{−r²/2}
    exponential       M(l) = E e^{l|θ|} = e^{s²/2} [e^{l|μ|} Φ(r+s) + e^{−l|μ|} Φ(s−r)]
    exponential-snr   M(l) / √(M(2l) − M(l)²) = (e^d − 1)^{−1/2},  d = log M(2l)/M(l)²
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from math import pi, sqrt
from typing import Literal

import torch
from torch import Tensor
from torch.special import log_ndtr

from smidgen.errors import ArgumentError
from smidgen.sparse.budgets import Budget, share_out
from smidgen.sparse.network import SparseNetwork

PruningScore = Literal["magnitude", "snr", "expected", "exponential", "exponential-snr"]

# The least positive number of fp64: log 0 must be finite.
_LEAST = 5e-324
# e^±300 squared is still a number.
_LONGEST = 300.0
_LARGE = 1e300
# Beyond this many scales from zero, Φ is 1 to the last bit of fp64.
_FAR = 9.0
# Below it d is a difference of nearly equal numbers, and its series is exact to 1e-7.
_SMALL = 1e-4


def check_score(name: str, score: str) -> None:
    """Refuse an unknown score, whatever the argument is called."""
    if score not in PRUNING_SCORES:
        allowed = ", ".join(map(repr, PRUNING_SCORES))
        raise ArgumentError(f"{name} must be one of {allowed}, got {score!r}.")


def prune_network(
    network: SparseNetwork,
    density: float,
    *,
    by: PruningScore = "magnitude",
    budget: Budget = "global",
    deterministic: bool = False,
) -> SparseNetwork:
    """Keep the best weights of a trained network, without training it further.

    Args:
        network: A network, dense or sparse; never changed.
        density: Fraction of all weights of the layers to keep, active now, in (0, 1].
        by: The score that ranks the weights.
        budget: "global" ranks all layers together; "uniform" and "erk" keep as many of
            each layer as they allot it, or all its active weights if those are fewer.
        deterministic: Drop the scales: a sparse model of points.

    Returns:
        A copy with fewer weights, of the same values.

    Raises:
        ArgumentError: If an argument is out of range.
    """
    if not 0 < density <= 1:
        raise ArgumentError(
            f"density must be in (0, 1], got {density}. It is a fraction: try 0.1."
        )
    if round(density * network.total) > network.count:
        raise ArgumentError(
            f"density must be at most the network's own, {network.density:.4g}, got "
            f"{density}. Lower it."
        )
    check_score("by", by)
    copy = deepcopy(network)
    scores = {
        name: log_score(layer.means, layer.log_scales, by)
        for name, layer in copy.layers.items()
    }
    counts: int | dict[str, int] = max(1, round(density * copy.total))
    if budget != "global":
        shapes = {name: layer.shape for name, layer in copy.layers.items()}
        counts = share_out(shapes, density, budget)
    for name, mask in mark_survivors(scores, counts).items():
        layer = copy.layers[name]
        indices = layer.pattern.list_indices(mask.device)[mask]
        logs = None if layer.log_scales is None else layer.log_scales[mask]
        pattern = replace(layer.pattern, indices=indices)
        layer.set_weights(pattern, layer.means[mask], logs)
    if deterministic:
        for layer in copy.layers.values():
            layer.log_scales = None
        copy.set_noise("none")
    return copy


def log_score(means: Tensor, log_scales: Tensor | None, by: PruningScore) -> Tensor:
    """Compute the log of a score, (k,), in fp64 and finite; higher scores stay longer."""
    size = means.detach().double().abs().nan_to_num(0.0, _LARGE).clamp_max(_LARGE)
    if log_scales is None:
        return _log(size)
    logs = log_scales.detach().double().nan_to_num(0.0, _LONGEST, -_LONGEST)
    return PRUNING_SCORES[by](size, logs.clamp(-_LONGEST, _LONGEST))


def mark_survivors(
    scores: Mapping[str, Tensor], counts: int | Mapping[str, int]
) -> dict[str, Tensor]:
    """Mark the best of each layer, or of all layers together but at least one of each."""
    if not isinstance(counts, int):
        return {name: mark_best(score, counts[name]) for name, score in scores.items()}
    copies = {name: score.clone() for name, score in scores.items()}
    for score in copies.values():
        # The best weight of a layer always stays.
        score[score.argmax()] = torch.inf
    mask = mark_best(torch.cat(list(copies.values())), max(counts, len(copies)))
    masks = mask.split([score.numel() for score in copies.values()])
    return dict(zip(copies, masks, strict=True))


def mark_best(scores: Tensor, count: int) -> Tensor:
    """Mark the largest scores, at least one; earlier entries win ties."""
    mask = torch.zeros_like(scores, dtype=torch.bool)
    mask[scores.argsort(descending=True, stable=True)[: max(1, count)]] = True
    return mask


def _log(size: Tensor) -> Tensor:
    return size.clamp_min(_LEAST).log()


def _expected(size: Tensor, logs: Tensor) -> Tensor:
    ratio = (size * (-logs).exp()).clamp_max(_FAR)
    return torch.where(ratio < _FAR, logs + _folded_mean(ratio).log(), _log(size))


def _exponential(size: Tensor, logs: Tensor, rate: float = 1.0) -> Tensor:
    scale = rate * logs.exp()
    ratio = size * (-logs).exp()
    right = rate * size + log_ndtr(ratio + scale)
    left = -rate * size + log_ndtr(scale - ratio)
    return scale.square() / 2 + torch.logaddexp(right, left)


def _exponential_snr(size: Tensor, logs: Tensor) -> Tensor:
    scale = logs.exp()
    ratio = size * (-logs).exp()
    direct = _exponential(size, logs, 2.0) - 2 * _exponential(size, logs)
    near = ratio.clamp_max(_FAR)
    # Cumulants of |z + r|: d = κ₂ s² + κ₃ s³ + O(s⁴).
    series = scale.square() * (_folded_variance(near) + scale * _folded_skew(near))
    between = torch.where(scale < _SMALL, series, direct)
    # Far from zero |θ| is θ: a lognormal, d = s².
    gap = torch.where(ratio > 2 * scale + _FAR, scale.square(), between)
    gap = gap.clamp_min(_LEAST)
    # log(e^d − 1), which is d where e^d would overflow.
    return -0.5 * torch.where(gap > 40, gap, gap.clamp_max(40).expm1().log())


def _folded_mean(ratio: Tensor) -> Tensor:
    """E|z + r| for a standard normal z."""
    return ratio * torch.erf(ratio / sqrt(2)) + _bell(ratio)


def _folded_variance(ratio: Tensor) -> Tensor:
    # 1 + r² − f², with r − f taken from erfc: the squares would cancel.
    excess = ratio * torch.erfc(ratio / sqrt(2)) - _bell(ratio)
    return 1 + excess * (ratio + _folded_mean(ratio))


def _folded_skew(ratio: Tensor) -> Tensor:
    """Third cumulant of |z + r|."""
    mean = _folded_mean(ratio)
    third = (ratio**3 + 3 * ratio) * torch.erf(ratio / sqrt(2))
    third = third + (ratio.square() + 2) * _bell(ratio)
    return third - 3 * mean * (1 + ratio.square()) + 2 * mean**3


def _bell(ratio: Tensor) -> Tensor:
    return sqrt(2 / pi) * (-ratio.square() / 2).exp()


PRUNING_SCORES: dict[PruningScore, Callable[[Tensor, Tensor], Tensor]] = {
    "magnitude": lambda size, logs: _log(size),
    "snr": lambda size, logs: _log(size) - logs,
    "expected": _expected,
    "exponential": _exponential,
    "exponential-snr": _exponential_snr,
}
