"""Two classes: E σ(f) of a Gaussian logit f ~ N(m, v), in logarithms, by quadrature.

A logistic variable is a normal one of random scale 2k, where k has Kolmogorov's
distribution (Andrews and Mallows, 1974). So

    σ(x) = ∫ Φ(x / 2k) dF(k),           E σ(f) = ∫ Φ(m r) dF(k),     r = (4k² + v)^(−1/2),
    H[σ(x)] = ∫ 4k² N(x; 0, 4k²) dF(k),  E H = ∫ 4k² r φ(m r) dF(k),

and neither nodes nor weights depend on m or v. In log k the trapezoid rule takes 20 nodes
to an error of 1e-11. Gauss–Hermite nodes over f would need more the larger v is, as the
sigmoid becomes a step.

What the tail hides is found by σ(x) = eˣ σ(−x): E σ(f) with m = −a is e^(v/2 − a) times
that with m = a − v. So the integral is taken where it is not small, or where the normal's
tail, which erfc knows, is most of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sqrt

import torch
from torch import Tensor

from smidgen.outputs.information import entropy_of

NODES = 20
_FIRST, _STEP = -1.5, 0.15  # of log k
# From here on erfc is not far from underflow.
_FAR = 25.0


def _make_nodes() -> tuple[Tensor, Tensor]:
    """Scales k and weights of the integral over Kolmogorov's distribution, (20,) each."""
    scales = (_FIRST + _STEP * torch.arange(NODES, dtype=torch.float64)).exp()
    # Its density is 8k Σ_n (−1)^(n+1) n² e^(−2n²k²).
    n = torch.arange(1, 31, dtype=torch.float64)[:, None]
    terms = n.square() * (-2 * (n * scales).square()).exp()
    density = 8 * scales * (terms[::2].sum(0) - terms[1::2].sum(0))
    weights = (density * scales).clamp_min(0)
    return scales, weights / weights.sum()


_SCALES, _WEIGHTS = _make_nodes()


@dataclass(frozen=True, eq=False)
class GaussianLogit:
    """Logits of some variances (...), whose means may still change.

    `reciprocals` (..., 20) are r at each node: all that only the variance decides.
    """

    variance: Tensor
    reciprocals: Tensor

    @classmethod
    def of(cls, variance: Tensor) -> GaussianLogit:
        """Prepare for variances (...)."""
        squares = 4 * _SCALES.to(variance).square()
        return cls(variance, (squares + variance[..., None]).rsqrt())

    def log_prob(self, mean: Tensor) -> Tensor:
        """Compute log E σ(f) for means (...)."""
        size = mean.abs()
        # The smaller probability is computed, the larger is one minus it.
        smaller = self._log_tail(size)
        return torch.where(mean < 0, smaller, (-smaller.exp()).log1p())

    def information(self, mean: Tensor) -> Tensor:
        """Compute H[E σ(f)] − E H[σ(f)] in nats for means (...)."""
        both = torch.stack([self.log_prob(mean), self.log_prob(-mean)], -1)
        r = self.reciprocals
        density = (-0.5 * (mean[..., None] * r).square()).exp() / sqrt(2 * pi)
        weights = (_WEIGHTS * 4 * _SCALES.square()).to(mean)
        return (entropy_of(both) - (r * density) @ weights).clamp_min(0)

    def _log_tail(self, size: Tensor) -> Tensor:
        """Compute log E σ(f) for means of −size."""
        variance = self.variance
        turned = size > variance / 2  # the mean is size − variance instead
        left = torch.where(turned, (size - variance).abs(), size)
        places = left[..., None] * self.reciprocals * sqrt(0.5)  # (..., 20)
        tail = 0.5 * (torch.erfc(places) @ _WEIGHTS.to(places))
        logs = tail.log()
        far = places[..., -1] > _FAR  # the last node is the nearest
        if far.any():
            normal = torch.special.log_ndtr(-sqrt(2) * places[far])
            logs[far] = (normal + _WEIGHTS.to(places).log()).logsumexp(-1)
        opposite = torch.where(size >= variance, (-tail).log1p(), logs)
        return torch.where(turned, variance / 2 - size + opposite, logs)
