"""`SwagPosterior`: a Gaussian through the weights that SGD visited.

Of T snapshots w_t of the chosen weights (the paper's equations 1–4):

    mean      w̄ = (1/T) Σ w_t
    variance  s = (1/T) Σ (w_t − w̄)²
    columns   D, the last K deviations w_t − w̄_t from the running mean
    sample    w̄ + (s/2)^½ ∘ z₁ + (2(K − 1))^−½ Dᵀ z₂

so the covariance is ½ diag(s) + DᵀD / (2(K − 1)): (K + 2)·S floats for S weights. Without
columns it is diag(s) alone; without a variance the mean is all there is ("swa").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError
from smidgen.outputs.likelihood import Likelihood
from smidgen.posterior.laplace import Sampler
from smidgen.runtime.fingerprint import require_fingerprint
from smidgen.weights.subset import Subset
from smidgen.weights.vector import SubsetIndex, find_parameters

CovarianceKind = Literal["low-rank", "diagonal", "none"]
COVARIANCE_KINDS: tuple[CovarianceKind, ...] = get_args(CovarianceKind)
# Draws made together: so many further vectors of the subset's size.
_TOGETHER = 4
LEAST_SNAPSHOTS: dict[CovarianceKind, int] = {"none": 1, "diagonal": 2, "low-rank": 3}
"""How many snapshots each covariance needs."""


@dataclass(frozen=True)
class SampleTuning:
    """What was chosen on validation data for prediction by weight samples.

    Args:
        nll: Validation NLL of the samples' mixture at temperature 1, or with the noise
            that suits a regression's point estimate.
        chosen_nll: The same at the chosen temperature.
        map_nll: NLL of the point estimate, likewise.
        map_scale: The best temperature or noise of the point estimate.
        map_scaled_nll: NLL of the point estimate with that.
        examples: How many validation examples.
        samples: How many samples of the weights.
    """

    nll: float
    chosen_nll: float
    map_nll: float
    map_scale: float
    map_scaled_nll: float
    examples: int
    samples: int


@dataclass(frozen=True, eq=False)
class SwagPosterior:
    """N(mean, ½ diag(variance) + DᵀD / (2(K − 1))) over a subset; all else stays fixed.

    Args:
        subset: The stochastic weights.
        likelihood: What the model's outputs mean.
        mean: Mean of the snapshots, (S,), in the order of `SubsetVector`.
        variance: Their variance, (S,); None for the mean alone.
        deviations: The last deviations from the running mean, (K, S); None without.
        fingerprint: Hash of the weights of the model it was collected from.
        num_data: Training examples in one epoch of the collection; 0 if not counted.
        snapshots: How many snapshots the moments are of.
        learning_rate: The rate of the collection, if it was ours.
        rates: The rates tried for it, and the validation NLL of each; empty if given.
        temperature: Divides the logits of every sample.
        tuning: How the temperature was chosen, if it was.
    """

    subset: Subset
    likelihood: Likelihood
    mean: Tensor
    variance: Tensor | None
    deviations: Tensor | None
    fingerprint: str
    num_data: int
    snapshots: int
    learning_rate: float | None = None
    rates: tuple[tuple[float, float], ...] = ()
    temperature: float = 1.0
    tuning: SampleTuning | None = field(default=None, repr=False)
    method: ClassVar[str] = "swag"

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", float(self.temperature))
        if not 0 < self.temperature < float("inf"):
            raise ArgumentError(
                f"temperature must be > 0 and finite, got {self.temperature}."
            )
        size = self.subset.size
        rank = 0 if self.deviations is None else len(self.deviations)
        wanted = {"mean": (size,), "variance": (size,), "deviations": (rank, size)}
        for name, shape in wanted.items():
            value = getattr(self, name)
            if value is not None and tuple(value.shape) != shape:
                raise ArgumentError(
                    f"{name} must have shape {shape} for this subset, got "
                    f"{tuple(value.shape)}."
                )
            if value is not None and not bool(torch.isfinite(value).all()):
                raise ArgumentError(
                    f"{name} must be finite, got NaN or infinity: SGD ran off. Lower the "
                    "learning rate."
                )
        if self.deviations is not None and (self.variance is None or rank < 2):
            raise ArgumentError(
                f"deviations need a variance beside them and 2 columns or more, got {rank}."
            )

    @property
    def covariance(self) -> CovarianceKind:
        """Which covariance it has."""
        if self.variance is None:
            return "none"
        return "diagonal" if self.deviations is None else "low-rank"

    @property
    def floats(self) -> int:
        """Floats of the moments: (K + 2)·S, 2·S or S."""
        parts = (self.mean, self.variance, self.deviations)
        return sum(each.numel() for each in parts if each is not None)

    def require(self, model: nn.Module) -> None:
        """Refuse a model whose weights are not those it was collected from."""
        require_fingerprint(model, self.fingerprint)

    def sampler(self, model: nn.Module) -> Sampler:
        """Prepare draws of the weights: each gives the parameters it changes, by name."""
        parameters = find_parameters(model, self.subset)
        places = SubsetIndex(self.subset, parameters)

        def draw(generators: Sequence[torch.Generator]) -> Iterator[dict[str, Tensor]]:
            # Several at once read the deviations once.
            for start in range(0, len(generators), _TOGETHER):
                for values in self.drawn(generators[start : start + _TOGETHER]):
                    yield places.replaced(parameters, values)

        return draw

    def drawn(self, generators: Sequence[torch.Generator]) -> Iterator[Tensor]:
        """Draw the chosen weights once from each generator.

        Args:
            generators: Sources of the draws, on the CPU.

        Yields:
            The weights themselves, (S,), not deviations.
        """
        mean, kind = self.mean, self.mean.dtype
        centres: Sequence[Tensor] = [mean] * len(generators)
        covariance = self.variance
        if self.deviations is not None and self.variance is not None:
            rank = len(self.deviations)
            drawn = [torch.randn(rank, dtype=kind, generator=g) for g in generators]
            mixing = torch.stack(drawn).to(mean) / (2 * (rank - 1)) ** 0.5
            centres = (mixing @ self.deviations).add_(mean)
            covariance = self.variance / 2
        scale = None if covariance is None else covariance.sqrt()
        for centre, generator in zip(centres, generators, strict=True):
            if scale is None:
                yield centre.clone()
            else:
                normals = torch.randn(len(mean), dtype=kind, generator=generator)
                yield torch.addcmul(centre, scale, normals.to(mean))

    def covariance_matrix(self) -> Tensor:
        """The covariance as an (S, S) matrix; for checks on small subsets only."""
        if self.variance is None:
            return self.mean.new_zeros(len(self.mean), len(self.mean))
        if self.deviations is None:
            return self.variance.diag()
        columns = self.deviations
        return self.variance.diag() / 2 + columns.T @ columns / (2 * (len(columns) - 1))

    def with_temperature(self, temperature: float) -> SwagPosterior:
        """Return the same posterior with another temperature on its logits."""
        return replace(self, temperature=temperature)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SwagPosterior):
            return NotImplemented
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return all(_same(*pair) for pair in pairs)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        rank = 0 if self.deviations is None else len(self.deviations)
        return (
            f"SwagPosterior({self.covariance}, {self.subset.size:,} weights, rank {rank}, "
            f"{self.snapshots} snapshots, {self.floats:,} floats, temperature "
            f"{self.temperature:.3g})"
        )


def check_covariance(covariance: str, rank: int) -> None:
    """Refuse a covariance that there is not, or too few deviations for it.

    Args:
        covariance: Which covariance.
        rank: How many deviations.

    Raises:
        ArgumentError: If one is outside what it may be.
    """
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

    Args:
        size: How many weights, S.
        rank: How many deviations to keep, K, if the covariance is low-rank.
        covariance: Which covariance is wanted.
        like: A tensor whose type and device the moments have.
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
        kept = rank if covariance == "low-rank" else 0
        self.deviations = like.new_zeros(kept, size)

    def add(self, values: Tensor) -> None:
        """Take the weights as they are now for one more snapshot."""
        before = values - self.mean
        self.mean += before / (self.count + 1)
        if self.covariance != "none":
            self.squares += before * (values - self.mean)
        if self.covariance == "low-rank":
            self.deviations[self.count % len(self.deviations)] = values - self.mean
        self.count += 1

    def moments(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Mean, variance and deviations, as the posterior takes them.

        Returns:
            Copies; those that the covariance does not have are None.

        Raises:
            ArgumentError: If there are too few snapshots.
        """
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
        """All there is to go on from."""
        count = torch.tensor(self.count)
        parts = {"mean": self.mean, "squares": self.squares, "columns": self.deviations}
        return {"count": count, **parts}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state."""
        self.count = int(state["count"])
        self.mean.copy_(state["mean"])
        self.squares.copy_(state["squares"])
        self.deviations.copy_(state["columns"])


def _same(left: object, right: object) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return torch.equal(left, right)
    return left == right
