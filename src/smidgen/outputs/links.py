"""From Gaussian outputs to probabilities: E[softmax(f)] for f ~ N(mean, covariance).

The temperature T divides the mean and not the covariance: for the probit, that is the
same as dividing its damped logits by T.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log, pi

import torch
from torch import Tensor

from smidgen.errors import ArgumentError, is_whole

LINKS = ("probit", "diagonal-probit", "sampling", "laplace-bridge")
DRAWS = 256
"""How many draws of the logits the sampling link takes by default."""


@dataclass(frozen=True)
class Link:
    """A link and its settings; the name alone does wherever a link is asked for.

    Args:
        name: "auto", "probit" (two classes, exact in f₁ − f₀), "diagonal-probit" (the
            paper's equation 12), "sampling" or "laplace-bridge".
        draws: Draws of the logits if the link samples.
        top: Give only this many classes of each example a covariance, its likeliest:
            top − 1 backward passes. The others keep their distance to the likeliest.
    """

    name: str = "auto"
    draws: int = DRAWS
    top: int | None = None

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

    def refuse_for_draws(self) -> None:
        """Refuse a link where the network itself runs under draws of its weights."""
        if self.name != "auto" or self.top is not None:
            raise ArgumentError(
                "link must be left out where a posterior predicts by draws of its weights, "
                f"which need none, got {self}."
            )


def damping_factor(variance: Tensor) -> Tensor:
    """Probit approximation's factor κ = (1 + π/8·v)^(−1/2) on a logit of variance v."""
    return (1 + pi / 8 * variance).rsqrt()


def resolve_link(link: str, outputs: int, top: int | None = None) -> str:
    """Pick the link for C classes: unless named, the probit for two, sampling for more or `top`."""
    if top is not None:
        if isinstance(top, bool) or not isinstance(top, int) or not 2 <= top <= outputs:
            raise ArgumentError(
                f"top must be a whole number of classes, 2 to {outputs}, got {top!r}."
            )
        if link not in ("auto", "sampling"):
            raise ArgumentError(
                f"top is for link 'sampling', got {link!r}. Leave one of them out."
            )
        return "sampling"
    if link == "auto":
        return "probit" if outputs == 2 else "sampling"
    if link not in LINKS:
        raise ArgumentError(f"link must be 'auto' or one of {LINKS}, got {link!r}.")
    if link == "probit" and outputs != 2:
        raise ArgumentError(
            f"link 'probit' is for two classes, got {outputs}. Use 'sampling', "
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
    if link == "probit":
        difference, variance = contrasts[..., 0], covariance[..., 0, 0]
        return lambda temperature: two_class_probit(
            difference / append_axes(temperature, 1), variance
        )
    if link == "laplace-bridge":
        full = centre(covariance)
        return lambda temperature: laplace_bridge(
            logits / append_axes(temperature, 2), full
        )
    drawn = draws_at_temperatures(contrasts, covariance, normals)
    return lambda temperature: log_mean(drawn(temperature).log_softmax(-1))


def targets_at_temperatures(
    link: str,
    logits: Tensor,
    covariance: Tensor,
    targets: Tensor,
    *,
    normals: Tensor | None = None,
) -> Callable[[float | Tensor], Tensor]:
    """Prepare log-probabilities (..., B) of targets (B,) as a function of temperatures (...)."""
    if link != "sampling":
        at = at_temperatures(link, logits, covariance)
        return lambda temperature: pick_class(at(temperature), targets)
    drawn = draws_at_temperatures(logits[..., 1:] - logits[..., :1], covariance, normals)

    def sampled(temperature: float | Tensor) -> Tensor:
        # Only the target's probability is computed, not those of all C classes.
        draws = drawn(temperature)  # (..., B, S, C)
        chosen = pick_class(draws, targets[:, None])  # (..., B, S)
        return log_mean((chosen - draws.logsumexp(-1))[..., None])[..., 0]

    return sampled


def draws_at_temperatures(
    contrasts: Tensor, covariance: Tensor, normals: Tensor | None
) -> Callable[[float | Tensor], Tensor]:
    """Prepare draws of the logits, (..., S, C), whose noise no temperature changes."""
    if normals is None:
        normals = standard_normals(DRAWS, contrasts.shape[-1])
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


def two_class_probit(difference: Tensor, variance: Tensor) -> Tensor:
    """Log-probabilities (..., 2) from the mean and variance (...) of f₁ − f₀."""
    damped = difference * damping_factor(variance)
    return torch.nn.functional.logsigmoid(torch.stack([-damped, damped], -1))


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


def standard_normals(
    draws: int, outputs: int, *, generator: torch.Generator | None = None
) -> Tensor:
    """Draw (S, K) standard normals in fp64; without a generator, from a fixed seed."""
    if draws < 1:
        raise ArgumentError(f"draws must be 1 or more, got {draws}.")
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    return torch.randn(draws, outputs, dtype=torch.float64, generator=generator)


def noise_draws(covariance: Tensor, normals: Tensor) -> Tensor:
    """Turn standard normals (S, K) into draws of N(0, covariance): (..., S, K)."""
    root = matrix_root(covariance)  # (..., K, K)
    return torch.einsum("...ij,sj->...si", root, normals.to(root.dtype))


def centre(covariance: Tensor) -> Tensor:
    """From differences to class 0, (B, C−1, C−1), to centred logits, (B, C, C)."""
    classes = covariance.shape[-1] + 1
    centring = torch.eye(classes, dtype=covariance.dtype) - 1 / classes
    lift = centring[:, 1:]  # (C, C−1)
    return lift @ covariance @ lift.T


def with_first_class(contrasts: Tensor) -> Tensor:
    """Write differences to class 0 as logits with class 0 at zero."""
    return torch.cat([torch.zeros_like(contrasts[..., :1]), contrasts], -1)


def matrix_root(covariance: Tensor) -> Tensor:
    """A root R with R Rᵀ = covariance, also when that is singular."""
    values, vectors = torch.linalg.eigh(covariance)  # (..., K), (..., K, K)
    return vectors * values.clamp_min(0).sqrt()[..., None, :]
