"""From Gaussian outputs to probabilities: E[softmax(f)] for f ~ N(mean, covariance).

The temperature T divides the mean of the outputs and leaves their spread as it is, for
Gaussian outputs and for draws of the network alike: f becomes f̄/T + (f − f̄). So the
posterior's precision says how far outputs vary, and T how far they are believed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf, log, pi, sqrt
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from smidgen.errors import ArgumentError, is_whole
from smidgen.outputs.information import entropy_of

LINKS = ("quadrature", "probit", "diagonal-probit", "sampling", "laplace-bridge")
_TWO_CLASSES = ("quadrature", "probit")
DRAWS = 128
"""How many draws of the logits the sampling link takes by default: to calibrate and to
predict. They are quasi-random, and err less than 256 independent ones."""
EXACT_CLASSES = 50
"""Up to so many classes everything is exact by default."""
FOLLOWED = 10
"""How many of more classes are followed by default: with 60 classes, trained, the mean KL
divergence from the probabilities of all was 0.0002 (all layers) and 0.008 (last layer)."""
NODES = 12
"""How many nodes the quadrature of two classes has."""
# From here on erfc is not far from underflow.
_FAR = 25.0


KEPT_CLASSES = 4096
"""Of more classes a predictive keeps by default only those that are followed."""
Keep = Literal["auto", "followed", "all"]


@dataclass(frozen=True)
class Link:
    """A link and its settings; the name alone does wherever a link is asked for.

    Args:
        name: "auto", "quadrature" (two classes, exact in f₁ − f₀), "probit" (two classes,
            MacKay's approximation), "diagonal-probit" (the paper's equation 12),
            "sampling" or "laplace-bridge".
        draws: Draws of the logits if the link samples.
        top: Give only this many classes of each example a covariance, its likeliest:
            top − 1 backward passes. The others keep their distance to the likeliest. "all"
            follows every class; by default that is so up to 50, and above 10 are followed.
        keep: "all" keeps the probabilities of all classes, and "followed" those of the
            classes that are followed, as a `FollowedPredictive`. "auto" keeps all of 4,096
            classes or fewer.
    """

    name: str = "auto"
    draws: int = DRAWS
    top: int | Literal["all"] | None = None
    keep: Keep = "auto"

    @property
    def followed(self) -> int | None:
        """How many classes a settled link follows; None for all."""
        return None if self.top == "all" else self.top

    def __post_init__(self) -> None:
        if self.name not in ("auto", *LINKS):
            raise ArgumentError(
                f"link must be 'auto' or one of {LINKS}, got {self.name!r}. Leave it out "
                "for the usual one."
            )
        if not is_whole(self.draws) or self.draws < 1:
            raise ArgumentError(
                f"draws must be a whole number, 1 or more, got {self.draws!r}. Try {DRAWS}."
            )
        if self.keep not in get_args(Keep):
            raise ArgumentError(
                f"keep must be one of {get_args(Keep)}, got {self.keep!r}. Leave it out for "
                "'auto'."
            )

    def refuse_for_draws(self) -> None:
        """Refuse a link where the network itself runs under draws of its weights."""
        if self.name != "auto" or self.top is not None or self.keep == "followed":
            raise ArgumentError(
                "link must be left out where a posterior predicts by draws of its weights, "
                f"which need none, got {self}."
            )


def damping_factor(variance: Tensor) -> Tensor:
    """MacKay's factor (1 + π/8·v)^(−1/2) on a logit of variance v, by which σ(m) stands for E σ."""
    return (1 + pi / 8 * variance).rsqrt()


def resolve_link(link: str, outputs: int, top: int | str | None = None) -> str:
    """Pick the link for C classes: unless named, quadrature for two, sampling for more or `top`."""
    if top is not None and top != "all":
        if not is_whole(top) or not 2 <= int(top) <= outputs:
            raise ArgumentError(
                f"top must be a whole number of classes, 2 to {outputs}, or 'all', got "
                f"{top!r}. Leave it out for the usual number."
            )
        if link not in ("auto", "sampling"):
            raise ArgumentError(
                f"top is for link 'sampling', got {link!r}. Leave one of them out."
            )
        return "sampling"
    if link == "auto":
        return "quadrature" if outputs == 2 else "sampling"
    if link not in LINKS:
        raise ArgumentError(f"link must be 'auto' or one of {LINKS}, got {link!r}.")
    if link in _TWO_CLASSES and outputs != 2:
        raise ArgumentError(
            f"link {link!r} is for two classes, got {outputs}. Use 'sampling', "
            "'diagonal-probit' or 'laplace-bridge'."
        )
    return link


def directions(link: str, outputs: int) -> Tensor:
    """Combinations of the logits, (K, C), whose covariance a link needs."""
    # K = C for the diagonal probit; else the C − 1 differences to class 0.
    eye = torch.eye(outputs, dtype=torch.float64)
    return eye if link == "diagonal-probit" else eye[1:] - eye[0]


def at_temperatures(
    link: str, logits: Tensor, covariance: Tensor, *, normals: Tensor | None = None
) -> Callable[[float | Tensor], Tensor]:
    """Prepare log-probabilities (..., B, C) as a function of temperatures (...)."""
    # logits: (..., C). covariance: of the link's directions, (..., K, K). normals: (S, C−1),
    # for sampling. Everything that no temperature changes is computed once.
    if link == "diagonal-probit":
        return lambda temperature: diagonal_probit(
            logits / append_axes(temperature, 2), covariance
        )
    contrasts = logits[..., 1:] - logits[..., :1]  # (..., B, C−1)
    if link in _TWO_CLASSES:
        outcomes = GaussianLogit.of(covariance[..., 0, 0]).log_outcomes
        if link == "probit":
            outcomes = partial(both_outcomes, two_class_link(link, covariance[..., 0, 0]))
        return lambda temperature: outcomes(contrasts[..., 0] / append_axes(temperature, 1))
    if link == "laplace-bridge":
        full = centre(covariance, logits.shape[-1])
        return lambda temperature: laplace_bridge(
            logits / append_axes(temperature, 2), full
        )
    drawn = draws_at_temperatures(contrasts, covariance, normals)
    return lambda temperature: log_mean(drawn(temperature).log_softmax(-1))


def targets_at_temperatures(
    link: str, logits: Tensor, targets: Tensor, covariance: Tensor
) -> Callable[[float | Tensor], Tensor]:
    """Prepare log-probabilities (..., B) of targets (B,), of any link that does not sample."""
    if link in _TWO_CLASSES:
        contrasts = logits[..., 1] - logits[..., 0]
        log_yes = two_class_link(link, covariance[..., 0, 0])
        towards = contrasts * (2 * targets - 1)
        return lambda temperature: log_yes(towards / append_axes(temperature, 1))
    at = at_temperatures(link, logits, covariance)
    return lambda temperature: pick_class(at(temperature), targets)


def draws_at_temperatures(
    contrasts: Tensor, covariance: Tensor, normals: Tensor | None
) -> Callable[[float | Tensor], Tensor]:
    """Prepare draws of the logits, (..., S, C), whose noise no temperature changes."""
    noise = noise_draws(covariance, normals)
    return lambda temperature: with_first_class(
        contrasts[..., None, :] / append_axes(temperature, 3) + noise
    )


def log_mean(draws: Tensor) -> Tensor:
    """Logarithm of the mean of exponentials over draws, (..., S, C) to (..., C)."""
    return draws.logsumexp(-2) - log(draws.shape[-2])


def pick_class(values: Tensor, classes: Tensor) -> Tensor:
    """Pick from (..., C) the value of one class (...), which is broadcast."""
    return values.gather(-1, classes.expand(values.shape[:-1])[..., None]).squeeze(-1)


def append_axes(temperature: float | Tensor, axes: int) -> float | Tensor:
    """Append axes of length one to temperatures, so that they broadcast."""
    if not isinstance(temperature, Tensor):
        return temperature
    return temperature.reshape(*temperature.shape, *(1,) * axes)


def diagonal_probit(logits: Tensor, covariance: Tensor) -> Tensor:
    """The paper's equation 12: softmax of logits (..., C), each damped by its own variance."""
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    return (logits * damping_factor(variance)).log_softmax(-1)


def two_class_link(link: str, variance: Tensor) -> Callable[[Tensor], Tensor]:
    """Prepare log E σ(f) (...) as a function of the mean, for logits f of a variance (...)."""
    if link == "quadrature":
        return GaussianLogit.of(variance).log_prob
    factor = damping_factor(variance)
    return lambda mean: torch.nn.functional.logsigmoid(mean * factor)


def both_outcomes(log_yes: Callable[[Tensor], Tensor], mean: Tensor) -> Tensor:
    """Log-probabilities of no and yes, (..., 2), of logits of mean (...)."""
    return torch.stack([log_yes(-mean), log_yes(mean)], -1)


def divide_mean(draws: Tensor, temperature: float) -> Tensor:
    """Divide the mean of draws (S, ...) by the temperature, and keep how they vary about it."""
    return draws + draws.mean(0) * (1 / temperature - 1)


def _make_nodes() -> tuple[Tensor, Tensor]:
    """Scales k and weights, (12,) each: Gauss's rule for Kolmogorov's distribution."""
    # Whatever device the caller's context has when it imports this.
    exactly: Any = {"dtype": torch.float64, "device": "cpu"}
    # A fine sum over log k; the density is 8k Σ_n (−1)^(n+1) n² e^(−2n²k²).
    scales = (0.02 * torch.arange(-110, 88, **exactly)).exp()
    n = torch.arange(1, 41, **exactly)[:, None]
    terms = n.square() * (-2 * (n * scales).square()).exp()
    density = 8 * scales * (terms[::2].sum(0) - terms[1::2].sum(0))
    roots = (density * scales).clamp_min(0).sqrt()
    # Polynomials in 1/(1 + k) fit what is integrated best. Multiplication by it, as a matrix
    # over those of degree below 12, has the nodes as eigenvalues (Golub and Welsch, 1969).
    places = 1 / (1 + scales)
    powers = ((2 * places - 1).arccos()[:, None] * torch.arange(NODES, **exactly)).cos()
    basis = torch.linalg.qr(roots[:, None] * powers).Q
    nodes, vectors = torch.linalg.eigh(basis.T @ (places[:, None] * basis))
    return 1 / nodes - 1, vectors[0].square()


_SCALES, _WEIGHTS = _make_nodes()


@dataclass(frozen=True, eq=False)
class GaussianLogit:
    """A logit f ~ N(m, v) of two classes, for variances (...) and any means: E σ(f) by quadrature.

    A logistic variable is a normal one of random scale 2k, where k has Kolmogorov's
    distribution (Andrews and Mallows, 1974). So

        σ(x) = ∫ Φ(x / 2k) dF(k),            E σ(f) = ∫ Φ(m r) dF(k),    r = (4k² + v)^(−1/2),
        H[σ(x)] = ∫ 4k² N(x; 0, 4k²) dF(k),  E H = ∫ 4k² r φ(m r) dF(k),

    and no node depends on m or v: 12 serve everything, with a relative error of 1e-10 in E σ.
    Gauss–Hermite nodes over f would need more the larger v is, as σ becomes a step.

    What a tail hides is found by σ(x) = eˣ σ(−x): E σ(f) with m = −a is e^(v/2 − a) times
    that with m = a − v. So the integral is taken where it is not small, or where the normal's
    tail, which erfc knows, is most of it.

    `reciprocals` (..., 12) are r at each node: all that only the variance decides.
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
        return torch.where(mean < 0, *self._log_pair(mean))

    def log_outcomes(self, mean: Tensor) -> Tensor:
        """Compute log E σ(−f) and log E σ(f), (..., 2), for means (...)."""
        sides = torch.stack([mean > 0, mean < 0])
        return torch.where(sides, *self._log_pair(mean)).movedim(0, -1)

    def _log_pair(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        # The smaller probability, half at most, is computed; the larger is one minus it.
        smaller = self._log_tail(mean.abs()).clamp_max(-log(2))
        return smaller, (-smaller.exp()).log1p()

    def information(self, mean: Tensor) -> Tensor:
        """Compute H[E σ(f)] − E H[σ(f)] in nats for means (...)."""
        # Without variance there is none: what the nodes say of that is their error.
        still = GaussianLogit.of(torch.zeros_like(self.variance))
        difference = self._entropy_difference(mean) - still._entropy_difference(mean)
        return difference.clamp_min(0)

    def _entropy_difference(self, mean: Tensor) -> Tensor:
        r = self.reciprocals
        density = (-0.5 * (mean[..., None] * r).square()).exp() / sqrt(2 * pi)
        weights = (_WEIGHTS * 4 * _SCALES.square()).to(mean)
        return entropy_of(self.log_outcomes(mean)) - (r * density) @ weights

    def _log_tail(self, size: Tensor) -> Tensor:
        """Compute log E σ(f) for means of −size."""
        variance = self.variance
        turned = size > variance / 2  # the mean is size − variance instead
        left = torch.where(turned, (size - variance).abs(), size)
        places = (sqrt(0.5) * left)[..., None] * self.reciprocals  # (..., 12)
        tail = 0.5 * (torch.erfc(places) @ _WEIGHTS.to(places))
        logs = tail.log()
        far = places[..., 0] > _FAR  # the first scale is the largest
        if far.any():
            normal = torch.special.log_ndtr(-sqrt(2) * places[far])
            logs[far] = (normal + _WEIGHTS.to(places).log()).logsumexp(-1)
        opposite = torch.where(size >= variance, (-tail).log1p(), logs)
        return torch.where(turned, variance / 2 - size + opposite, logs)


def laplace_bridge(logits: Tensor, covariance: Tensor) -> Tensor:
    """Log-mean (..., C) of the Dirichlet that a Gaussian over centred logits stands for."""
    # The bridge of Hobbhahn, Kristiadi and Hennig (UAI 2022), with μ and Σ of the centred
    # logits: α_k = (1 − 2/C + e^{μ_k} Σ_l e^{−μ_l} / C²) / Σ_kk, in logarithms. A common
    # factor of Σ drops out of the mean, so small variances do not lead back to the softmax
    # but to the same shape as large ones. Without any variance the mean is the softmax.
    classes = logits.shape[-1]
    mean = logits - logits.mean(-1, keepdim=True)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    average = variance.mean(-1, keepdim=True)
    limits = torch.finfo(variance.dtype)
    # The α of a class that does not vary is infinite; a floor at rounding keeps it finite.
    floor = (limits.eps * average).clamp_min(limits.tiny)
    bent = mean + (-mean).logsumexp(-1, keepdim=True) - 2 * log(classes)
    flat = torch.full_like(bent, log(1 - 2 / classes) if classes > 2 else -inf)
    log_alpha = torch.logaddexp(bent, flat) - variance.maximum(floor).log()
    return torch.where(average > 0, log_alpha, mean).log_softmax(-1)


def standard_normals(draws: int, outputs: int, *, seed: int = 0) -> Tensor:
    """Draw (S, K) standard normals in fp64, spread evenly by a scrambled Sobol sequence."""
    if draws < 1:
        raise ArgumentError(f"draws must be 1 or more, got {draws}.")
    if outputs > SobolEngine.MAXDIM:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(draws, outputs, dtype=torch.float64, generator=generator)
    uniform = SobolEngine(outputs, scramble=True, seed=seed).draw(
        draws, dtype=torch.float64
    )
    # The sequence has steps of 2^-30 from zero on: their middles are in (0, 1).
    return torch.special.ndtri(uniform + 2**-31)


def noise_draws(covariance: Tensor, normals: Tensor | None) -> Tensor:
    """Turn standard normals (S, K), by default ours, into draws (..., S, K) of a covariance."""
    if normals is None:
        normals = standard_normals(DRAWS, covariance.shape[-1])
    root = matrix_root(covariance)  # (..., K, K)
    return torch.einsum("...ij,sj->...si", root, normals.to(root.dtype))


def centre(covariance: Tensor, classes: int) -> Tensor:
    """Covariance of the centred logits (B, C, C), from that of a link's directions."""
    # Directions are the C logits, or their C − 1 differences to class 0.
    centring = torch.eye(classes, dtype=covariance.dtype) - 1 / classes
    lift = centring[:, -covariance.shape[-1] :]
    return lift @ covariance @ lift.T


def between(covariance: Tensor) -> Tensor:
    """Covariance of the differences to the first class, (B, C−1, C−1), from (B, C, C)."""
    own = covariance[:, 1:, 1:] + covariance[:, :1, :1]
    return own - covariance[:, 1:, :1] - covariance[:, :1, 1:]


def with_first_class(contrasts: Tensor) -> Tensor:
    """Write differences to class 0 as logits with class 0 at zero."""
    return torch.cat([torch.zeros_like(contrasts[..., :1]), contrasts], -1)


def matrix_root(covariance: Tensor) -> Tensor:
    """A root R with R Rᵀ = covariance, also when that is singular."""
    # Cholesky's root is continuous in the covariance, so that draws stay common to all
    # precisions and batches; eigenvectors change sign and order at a whim. A little is added
    # to the diagonal, as much as rounding may have taken away.
    size, limits = covariance.shape[-1], torch.finfo(covariance.dtype)
    average = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    eye = torch.eye(size, dtype=covariance.dtype, device=covariance.device)
    added = (4 * size * limits.eps * average).clamp_min(limits.tiny) * eye
    root, failed = torch.linalg.cholesky_ex(covariance + added)
    if failed.any():
        wrong = failed > 0
        values, vectors = torch.linalg.eigh(covariance[wrong])  # (..., K), (..., K, K)
        root[wrong] = vectors * values.clamp_min(0).sqrt()[..., None, :]
    return root
