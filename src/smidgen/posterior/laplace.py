"""`LaplacePosterior`: a Gaussian over a subset of weights, centred at the trained values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from smidgen.curvature.operators import JOINT, Operator
from smidgen.errors import ArgumentError
from smidgen.outputs.likelihood import Gaussian, Likelihood
from smidgen.runtime.fingerprint import require_fingerprint
from smidgen.weights.blocks import find_blocks
from smidgen.weights.subset import Subset

Sampler = Callable[[Sequence[torch.Generator]], Iterator[dict[str, Tensor]]]
"""Draws weights, once from each generator: the parameters that a draw changes, by name."""


class Posterior(Protocol):
    """What every posterior over weights has, whatever its shape."""

    @property
    def subset(self) -> Subset:
        """The stochastic weights."""

    @property
    def likelihood(self) -> Likelihood:
        """What the model's outputs mean."""

    @property
    def temperature(self) -> float:
        """Divides the logits."""

    def require(self, model: nn.Module) -> None:
        """Refuse a model that it is not of."""

    def sampler(self, model: nn.Module) -> Sampler:
        """Prepare draws of the weights."""


@dataclass(frozen=True)
class Tuning:
    """How the prior precision was chosen: validation NLL over the whole grid.

    A *scale* goes with each precision: the temperature of a classifier, the noise
    variance of a regression.

    Args:
        precisions: The prior precisions tried.
        nll: Validation NLL of each, with the scale as it was.
        joint_nll: Validation NLL of each with the best scale for it.
        scales: Those best scales.
        map_nll: NLL of the point estimate.
        map_scale: The best scale of the point estimate: temperature scaling.
        map_scaled_nll: NLL of the point estimate with that scale.
        examples: How many validation examples.
        at_edge: Whether the chosen precision is the first or last of the grid.
        fixed_scale: The scale of `nll`.
        chosen_nll: Validation NLL of what was chosen.
        scope: Whether one precision was chosen, or one for each group or layer.
    """

    precisions: tuple[float, ...]
    nll: tuple[float, ...]
    joint_nll: tuple[float, ...]
    scales: tuple[float, ...]
    map_nll: float
    map_scale: float
    map_scaled_nll: float
    examples: int
    at_edge: bool
    fixed_scale: float = 1.0
    chosen_nll: float | None = None
    scope: str = "scalar"


@dataclass(frozen=True, eq=False)
class LaplacePosterior:
    """N(trained weights, (curvature + τI)⁻¹) over a subset; all else stays fixed.

    Args:
        subset: The stochastic weights.
        likelihood: What the model's outputs mean; its noise scales the curvature.
        operators: The curvature of each affine layer, by the layer's name; or one for all.
        precision: Prior precision τ, or one for each operator by its name.
        temperature: Divides the predictive's logits.
        fingerprint: Hash of the model's weights.
        num_data: Examples the curvature was summed over.
        structure: How the curvature is kept: "kron", "ekfac", "diag" or "full".
        approximation: How positions share weights: "expand" or "reduce".
        log_likelihood: That of the training data at the trained weights, if labelled.
        tuning: How precision and temperature were chosen, if they were.
    """

    subset: Subset
    likelihood: Likelihood
    operators: Mapping[str, Operator]
    precision: float | Mapping[str, float]
    fingerprint: str
    num_data: int
    temperature: float = 1.0
    structure: str = "kron"
    approximation: str = "reduce"
    log_likelihood: float | None = field(default=None, repr=False)
    tuning: Tuning | None = field(default=None, repr=False)
    method: ClassVar[str] = "laplace"

    def __post_init__(self) -> None:
        given = self.precision
        if isinstance(given, Mapping):
            if set(given) != set(self.operators):
                raise ArgumentError(
                    "precision must be a number, or one for each of the operators "
                    f"{', '.join(list(self.operators)[:3])}…, got {', '.join(given)}."
                )
            frozen = {name: float(value) for name, value in given.items()}
            object.__setattr__(self, "precision", MappingProxyType(frozen))
        else:
            object.__setattr__(self, "precision", float(given))
        object.__setattr__(self, "temperature", float(self.temperature))
        wanted = {"precision": min(self.precisions.values(), default=1.0)}
        wanted["largest precision"] = max(self.precisions.values(), default=1.0)
        for name, value in {**wanted, "temperature": self.temperature}.items():
            if not 0 < value < float("inf"):
                raise ArgumentError(f"{name} must be > 0 and finite, got {value}.")
        object.__setattr__(self, "operators", MappingProxyType(dict(self.operators)))

    @property
    def precisions(self) -> dict[str, float]:
        """The prior precision of each operator."""
        return {name: self.precision_of(name) for name in self.operators}

    @property
    def plain_precision(self) -> float | dict[str, float]:
        """The prior precision as JSON takes it: a number, or one for each operator."""
        given = self.precision
        return dict(given) if isinstance(given, Mapping) else given

    @property
    def precision_range(self) -> str:
        """The smallest and the largest prior precision, to be read."""
        return format_range(self.precisions.values())

    def precision_of(self, name: str) -> float:
        """The prior precision of one operator."""
        given = self.precision
        return given[name] if isinstance(given, Mapping) else given

    def require(self, model: nn.Module) -> None:
        """Refuse a model whose weights are not those the posterior was fitted to."""
        require_fingerprint(model, self.fingerprint)

    def sampler(self, model: nn.Module) -> Sampler:
        """Prepare draws of the weights: each gives the parameters it changes, by name."""
        chosen = find_blocks(model, self.subset)

        def draw(generator: torch.Generator) -> dict[str, Tensor]:
            drawn = self.drawn(generator)
            if JOINT in drawn:
                pieces = drawn[JOINT].split([block.size for block in chosen])
            else:
                pieces = tuple(drawn[block.layer.name] for block in chosen)
            found: dict[str, Tensor] = {}
            for block, piece in zip(chosen, pieces, strict=True):
                for name, deviation in block.scatter(piece).items():
                    weight = found.get(name, model.get_parameter(name).detach())
                    # Added in the finer of the two types: a small deviation of a bf16
                    # weight should be rounded once.
                    found[name] = (weight + deviation.to(weight.device)).to(weight.dtype)
            return found

        return lambda generators: map(draw, generators)

    def drawn(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the weights once, as deviations from the trained ones.

        Curvature H is kept for unit noise, so their covariance is σ²(H + τσ²)⁻¹.

        Args:
            generator: Source of the draw, on the CPU.

        Returns:
            Deviations (D,) by the operator's name, in the order of its weights.
        """
        scale, found = self.likelihood.scale, {}
        for name, operator in self.operators.items():
            shape = operator.values.shape
            normals = torch.randn(shape, dtype=torch.float64, generator=generator)
            precision = torch.tensor([self.precision_of(name) * scale])
            deviation = (operator.inverse_weights(precision)[:, 0] * scale).sqrt()
            found[name] = operator.weights(normals.to(deviation) * deviation)
        return found

    @property
    def floats(self) -> int:
        """Floats of the operators; of factors that is Σ n² + m² over the layers."""
        return sum(each.floats for each in self.operators.values())

    def with_precision(self, precision: float | Mapping[str, float]) -> LaplacePosterior:
        """Return the same curvature under another prior."""
        return replace(self, precision=precision)

    def with_temperature(self, temperature: float) -> LaplacePosterior:
        """Return the same posterior with another temperature on its logits."""
        return replace(self, temperature=temperature)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LaplacePosterior):
            return NotImplemented
        names = [each.name for each in fields(self)]
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[object, ...]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values.update(operators=dict(self.operators), precision=self.plain_precision)
        return partial(LaplacePosterior, **values), ()

    def __repr__(self) -> str:
        scale = f"temperature {self.temperature:.3g}"
        if isinstance(self.likelihood, Gaussian):
            scale = f"noise variance {self.likelihood.noise:.3g}"
        count = len(self.operators)
        return (
            f"Posterior({self.structure}, {self.subset.size:,} weights in "
            f"{count} operator{'s' * (count > 1)}, {self.floats:,} floats, "
            f"precision {self.precision_range}, {scale})"
        )


def format_range(values: Iterable[float]) -> str:
    """The smallest and the largest of some numbers, or the one they are, to be read."""
    found = sorted(set(values))
    ends = found if len(found) < 3 else (found[0], found[-1])
    return " to ".join(f"{each:.4g}" for each in ends)
