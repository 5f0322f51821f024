"""`SwagPosterior`: a Gaussian through the weights that SGD visited.

Of T snapshots w_t of the chosen weights (the paper's equations 1–4):

    mean      w̄ = (1/T) Σ w_t
    variance  s = (1/T) Σ (w_t − w̄)²
    columns   D, the last K deviations w_t − w̄_t from the running mean
    sample    w̄ + (s/2)^½ ∘ z₁ + (2(K − 1))^−½ Dᵀ z₂

so the covariance is ½ diag(s) + DᵀD / (2(K − 1)): (K + 2)·S floats for S weights. Without
columns it is diag(s) alone; without a variance only the mean is left ("swa").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError, StoreError
from smidgen.outputs.likelihood import Likelihood
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Config, Posterior, SampleCalibration, Sampler, Tensors
from smidgen.runtime.artifact import require_like
from smidgen.runtime.guard import fingerprint, require_fingerprint
from smidgen.runtime.memory import lay_out
from smidgen.runtime.processes.whole_weights import gather_tensor
from smidgen.weights.subset import Subset
from smidgen.weights.vector import SubsetIndex, find_parameters

CovarianceKind = Literal["low-rank", "diagonal", "none"]
COVARIANCE_KINDS: tuple[CovarianceKind, ...] = get_args(CovarianceKind)
_PARTS = ("mean", "variance", "deviations")
# Draws made together: each takes a vector of the subset's size.
_TOGETHER = 4
LEAST_SNAPSHOTS: dict[CovarianceKind, int] = {"none": 1, "diagonal": 2, "low-rank": 3}
"""How many snapshots each covariance needs."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SwagPosterior(Posterior):
    """N(mean, ½ diag(variance) + DᵀD / (2(K − 1))) over a subset; all else stays fixed.

    It belongs to the model it was collected from; `num_data` counts one epoch.

    Args:
        mean: Mean of the snapshots, (S,), in the order of `SubsetVector`.
        variance: Their variance, (S,), or None.
        deviations: The last deviations from the running mean, (K, S), or None.
        snapshots: How many snapshots there were.
        learning_rate: The learning rate, if `fit.swag` collected them.
        rates: The learning rates tried, and the validation NLL of each.
    """

    mean: Tensor
    variance: Tensor | None
    deviations: Tensor | None
    snapshots: int
    learning_rate: float | None = None
    rates: tuple[tuple[float, float], ...] = ()
    calibration: SampleCalibration | None = field(default=None)
    method = "swag"
    packed_types = {
        "covariance": CovarianceKind,
        "snapshots": int,
        "learning_rate": float | None,
        "rates": tuple[tuple[float, float | None], ...],
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.subset.size
        rank = 0 if self.deviations is None else len(self.deviations)
        shapes = {"mean": (size,), "variance": (size,), "deviations": (rank, size)}
        for name, shape in shapes.items():
            value = getattr(self, name)
            if value is not None and tuple(value.shape) != shape:
                raise ArgumentError(
                    f"{name} must have shape {shape} for this subset, got "
                    f"{tuple(value.shape)}."
                )
            if value is not None and not bool(torch.isfinite(value).all()):
                raise ArgumentError(
                    f"{name} must be finite, got NaN or infinity: SGD diverged. Lower the "
                    "learning rate."
                )
            if value is not None:
                object.__setattr__(self, name, lay_out(value))
        if self.variance is not None and bool((self.variance < 0).any()):
            raise ArgumentError("variance must be 0 or more.")
        if self.deviations is not None and (self.variance is None or rank < 2):
            raise ArgumentError(
                f"deviations need a variance beside them and 2 columns or more, got {rank}."
            )

    @property
    def covariance(self) -> CovarianceKind:
        """The kind of covariance."""
        if self.variance is None:
            return "none"
        return "diagonal" if self.deviations is None else "low-rank"

    def require(self, model: nn.Module) -> None:
        """Refuse a model with other weights than it was collected from."""
        require_fingerprint(model, self.fingerprint)

    def sampler(self, model: nn.Module) -> Sampler:
        """Prepare draws of the weights: each gives the parameters it changes, by name."""
        found = find_parameters(model, self.subset)
        parameters = {name: gather_tensor(parameter) for name, parameter in found.items()}
        places = SubsetIndex(self.subset, parameters)

        def draw(generators: Sequence[torch.Generator]) -> Iterator[dict[str, Tensor]]:
            # Several at once read the deviations once.
            for start in range(0, len(generators), _TOGETHER):
                for values in self.sample_weights(generators[start : start + _TOGETHER]):
                    yield places.replaced(parameters, values)

        return draw

    def sample_weights(self, generators: Sequence[torch.Generator]) -> Iterator[Tensor]:
        """Draw the chosen weights (S,) once from each generator."""
        mean, kind = self.mean, self.mean.dtype
        centres: Sequence[Tensor] = [mean] * len(generators)
        covariance = self.variance
        if self.deviations is not None and self.variance is not None:
            rank = len(self.deviations)
            normals = [torch.randn(rank, dtype=kind, generator=g) for g in generators]
            mixing = torch.stack(normals).to(mean) / (2 * (rank - 1)) ** 0.5
            centres = (mixing @ self.deviations).add_(mean)
            covariance = self.variance / 2
        scale = None if covariance is None else covariance.sqrt()
        for centre, generator in zip(centres, generators, strict=True):
            if scale is None:
                yield centre.clone()
            else:
                noise = torch.randn(len(mean), dtype=kind, generator=generator)
                yield torch.addcmul(centre, scale, noise.to(mean))

    def covariance_matrix(self) -> Tensor:
        """The covariance as an (S, S) matrix; for checks on small subsets only."""
        if self.variance is None:
            return self.mean.new_zeros(len(self.mean), len(self.mean))
        if self.deviations is None:
            return self.variance.diag()
        columns = self.deviations
        return self.variance.diag() / 2 + columns.T @ columns / (2 * (len(columns) - 1))

    def settings(self) -> dict[str, Any]:
        """List what was chosen on held-out data, as a record notes it."""
        return {
            **super().settings(),
            "learning_rate": self.learning_rate,
            "rates": [rate for rate, _ in self.rates],
            "snapshots": self.snapshots,
            "samples": self.samples,
        }

    def summary(self) -> dict[str, Any]:
        """List its size and how held-out data chose it, as JSON takes it."""
        return {**super().summary(), "learning_rate": self.learning_rate}

    def record_config(self) -> dict[str, Any]:
        """List what identifies it, as the config of a record notes it."""
        return {**super().record_config(), "spread": self.covariance, **self.settings()}

    def headline(self) -> str:
        """Name the learning rate, or else the number of snapshots."""
        rate = self.learning_rate
        return f"{self.snapshots} snapshots" if rate is None else f"learning rate {rate:g}"

    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Split the moments into tensors, and how they came about into settings."""
        parts = {f"swag/{name}": getattr(self, name) for name in _PARTS}
        return {name: part for name, part in parts.items() if part is not None}, {
            # So that a tensor that is lost is missed.
            "covariance": self.covariance,
            "snapshots": self.snapshots,
            "learning_rate": self.learning_rate,
            # JSON has no infinity: a rate that diverged has no NLL.
            "rates": [[rate, nll if isfinite(nll) else None] for rate, nll in self.rates],
        }

    @classmethod
    def unpack(
        cls, tensors: Tensors, config: Config, problem: Problem, common: Config
    ) -> Self:
        """Put together what `pack` split; the posterior checks every shape."""
        kind = config["covariance"]
        parts: dict[str, Any] = dict.fromkeys(_PARTS)
        for name in _PARTS[: 1 + COVARIANCE_KINDS[::-1].index(kind)]:
            stored = tensors[f"swag/{name}"]
            if not stored.is_floating_point() or stored.dtype != tensors["swag/mean"].dtype:
                raise StoreError(
                    f"swag/{name} must be of the mean's type, got {stored.dtype}"
                )
            parts[name] = stored.to(problem.device)
        if config["snapshots"] < LEAST_SNAPSHOTS[kind]:
            raise StoreError(f"snapshots must be more than {config['snapshots']}")
        rates = ((rate, inf if nll is None else nll) for rate, nll in config["rates"])
        return cls(
            **parts,
            snapshots=config["snapshots"],
            learning_rate=config["learning_rate"],
            rates=tuple(rates),
            **common,
        )

    def describe(self) -> str:
        """Describe it, for the card of its folder."""
        return f"""SWAG ({self.covariance}, {self.snapshots} snapshots) over {self.subset.size:,} of
{self.subset.total:,} weights ({self.subset.fraction:.3%}). Temperature {self.temperature:.4g};
{self.floats:,} floats in the moments."""

    def __repr__(self) -> str:
        rank = 0 if self.deviations is None else len(self.deviations)
        return (
            f"SwagPosterior({self.covariance}, {self.subset.size:,} weights, rank {rank}, "
            f"{self.snapshots} snapshots, {self.floats:,} floats, temperature "
            f"{self.temperature:.3g})"
        )


def check_covariance(covariance: str, rank: int) -> None:
    """Refuse an unknown covariance, or too few deviations for it."""
    if covariance not in COVARIANCE_KINDS:
        raise ArgumentError(
            f"covariance must be one of {', '.join(COVARIANCE_KINDS)}, got {covariance!r}."
        )
    if covariance == "low-rank" and rank < 2:
        raise ArgumentError(
            f"rank must be 2 or more, got {rank}. Use covariance='diagonal' for none."
        )


class Snapshots:
    """Running moments of snapshots of S weights, and the last K deviations.

    The moments have the type and device of `like`.
    """

    def __init__(
        self, size: int, rank: int, covariance: CovarianceKind, like: Tensor
    ) -> None:
        check_covariance(covariance, rank)
        self.covariance = covariance
        self.count = 0
        self.mean = like.new_zeros(size)
        # Sums of squares about the running mean (Welford): the difference of two large
        # second moments would lose the small deviations of fp32 weights.
        self.squares = like.new_zeros(0 if covariance == "none" else size)
        self.deviations = like.new_zeros(rank if covariance == "low-rank" else 0, size)

    def add(self, values: Tensor) -> None:
        """Count the current weights (S,) as one more snapshot."""
        before = values - self.mean
        self.mean += before / (self.count + 1)
        if self.covariance != "none":
            self.squares += before * (values - self.mean)
        if self.covariance == "low-rank":
            self.deviations[self.count % len(self.deviations)] = values - self.mean
        self.count += 1

    def moments(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Copy mean, variance and deviations; those the covariance lacks are None."""
        least = LEAST_SNAPSHOTS[self.covariance]
        if self.count < least:
            raise ArgumentError(
                f"a {self.covariance} posterior needs {least} snapshots or more, got "
                f"{self.count}. Take more steps, or a shorter interval between snapshots."
            )
        variance = None if self.covariance == "none" else self.squares / self.count
        columns = None
        if self.covariance == "low-rank":
            # The first deviation is zero by definition; it counts like any other.
            columns = self.deviations[: min(self.count, len(self.deviations))].clone()
        return self.mean.clone(), variance, columns

    def state(self) -> dict[str, Tensor]:
        """List the tensors that `restore` takes."""
        moments = {"mean": self.mean, "squares": self.squares, "columns": self.deviations}
        return {"count": torch.tensor(self.count), **moments}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a state."""
        self.count = int(state["count"])
        moments = {"mean": self.mean, "squares": self.squares, "columns": self.deviations}
        for name, moment in moments.items():
            moment.copy_(require_like(name, state[name], moment))


class SwagCollector:
    """Collects snapshots of the chosen weights of a model that you train.

    Weights outside the subset are taken as they are when `posterior` is called, so freeze
    them, or call it when training is over.

    Args:
        model: The model in training; it is only read.
        subset: The weights to be stochastic.
        rank: How many deviations to keep, K.
        covariance: "low-rank", "diagonal" or "none".
    """

    def __init__(
        self,
        model: nn.Module,
        subset: Subset,
        *,
        rank: int = 20,
        covariance: CovarianceKind = "low-rank",
    ) -> None:
        self.model, self.subset = model, subset
        self._parameters = find_parameters(model, subset)
        self._places = SubsetIndex(subset, self._parameters)
        now = self._places.gather(self._parameters)
        self.snapshots = Snapshots(subset.size, rank, covariance, now)

    def collect(self) -> None:
        """Count the current weights as one more snapshot."""
        self.snapshots.add(self._places.gather(self._parameters))

    def posterior(self, likelihood: Likelihood, *, num_data: int = 0) -> SwagPosterior:
        """Make the posterior; do not train the model any further.

        Args:
            likelihood: What the model's outputs mean.
            num_data: How many examples it was trained on, for the record.

        Returns:
            The posterior of the model as it is now.

        Raises:
            ArgumentError: If the likelihood is not one, or there are too few snapshots.
        """
        if not isinstance(likelihood, Likelihood):
            raise ArgumentError(
                "likelihood must be smidgen.Categorical, Bernoulli or Gaussian, got "
                f"{type(likelihood).__name__}."
            )
        mean, variance, deviations = self.snapshots.moments()
        return SwagPosterior(
            subset=self.subset,
            likelihood=likelihood,
            mean=mean,
            variance=variance,
            deviations=deviations,
            fingerprint=fingerprint(self.model),
            num_data=num_data,
            snapshots=self.snapshots.count,
        )
