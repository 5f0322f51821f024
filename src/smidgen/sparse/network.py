"""From a model to a sparse Gaussian network: a copy whose maps hold k weights each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import log, sqrt
from typing import Any, Literal

import torch
from torch import Tensor, nn

from smidgen.affine import AffineMap, affine_coverage
from smidgen.errors import ArgumentError, StructureError
from smidgen.sparse.budgets import Budget, shares
from smidgen.sparse.maps import (
    GaussianConv2d,
    GaussianLinear,
    GaussianMap,
    Noise,
    matrix_of,
)
from smidgen.sparse.pattern import Pattern
from smidgen.sparse.products import Path
from smidgen.subset import Entries, Part, Subset, Whole
from smidgen.types import Shape

Start = Literal["random", "magnitude"]
Prior = float | Mapping[str, float] | None


@dataclass(frozen=True, eq=False)
class Weights:
    """The active weights of one map, the scale of their prior and its density."""

    pattern: Pattern
    means: Tensor
    log_scales: Tensor | None
    prior: float


class SparseNetwork(nn.Module):
    """A model some of whose maps are sparse and Gaussian.

    Args:
        model: The copy with its maps in place; its other parts are as they were.
        maps: The Gaussian maps by name.
        frames: What each was in the caller's model.
        priors: Standard deviation of each map's prior.
        universe: All parameters of affine maps of the caller's model.
        budget: Whether maps may exchange active weights.
        generator: Source of all noise.
    """

    def __init__(
        self,
        model: nn.Module,
        maps: Mapping[str, GaussianMap],
        frames: Mapping[str, AffineMap],
        priors: Mapping[str, float],
        universe: Mapping[str, Shape],
        budget: Budget,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.model = model
        self.maps = dict(maps)
        self.frames = dict(frames)
        self.priors = dict(priors)
        self.universe = dict(universe)
        self.budget: Budget = budget
        self.generator = generator

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the model; in training mode with noise, in evaluation mode on the means."""
        return self.model(*inputs, **named)

    @property
    def count(self) -> int:
        """Active weights."""
        return sum(part.pattern.count for part in self.maps.values())

    @property
    def total(self) -> int:
        """Weights of the maps, active or not."""
        return sum(part.pattern.total for part in self.maps.values())

    @property
    def density(self) -> float:
        """Active share of the maps' weights, in (0, 1]."""
        return self.count / self.total

    @property
    def stochastic(self) -> bool:
        """Whether weights have scales, or are points."""
        return any(part.log_scales is not None for part in self.maps.values())

    def subset(self) -> Subset:
        """Describe the active set as it is now, in the caller's names."""
        parts: dict[str, Part] = {}
        for name, part in self.maps.items():
            held = part.pattern.indices
            weight = self.frames[name].weight
            parts[weight] = Whole() if held is None else Entries(held)
        return Subset(self.universe, parts)

    def kl(self) -> Tensor:
        """KL(q ‖ prior) of the active weights in closed form, a scalar.

        Returns:
            Σ log(s/σ) + (σ² + μ²)/(2s²) − ½, with the prior N(0, s²) of each map.

        Raises:
            StructureError: If the weights are points.
        """
        found = []
        for name, part in self.maps.items():
            if part.log_scales is None:
                raise StructureError(
                    "a network without noise has no KL term. Make it with "
                    "deterministic=False."
                )
            prior, count = self.priors[name], part.pattern.count
            squares = part.means.square().sum() + (2 * part.log_scales).exp().sum()
            constant = count * (log(prior) - 0.5)
            found.append(squares / (2 * prior**2) - part.log_scales.sum() + constant)
        return torch.stack(found).sum()

    @contextmanager
    def drawn(self, generator: torch.Generator) -> Iterator[None]:
        """Run every forward pass in this context on one draw of the weights."""
        try:
            for part in self.maps.values():
                part.drawn = part.draw(generator).detach()
            yield
        finally:
            for part in self.maps.values():
                part.drawn = None

    def set_noise(self, noise: Noise) -> None:
        """Choose what training draws: outputs, one set of weights a batch, or nothing."""
        if noise not in ("local", "weights", "none"):
            raise ArgumentError(
                f"noise must be 'local', 'weights' or 'none', got {noise!r}."
            )
        for part in self.maps.values():
            part.noise = noise if part.log_scales is not None else "none"

    def set_path(self, path: Path | Literal["auto"]) -> None:
        """Choose how to compute; "auto" times both in every map's next forward pass."""
        if path not in ("auto", "dense", "sparse"):
            raise ArgumentError(f"path must be 'auto', 'dense' or 'sparse', got {path!r}.")
        for part in self.maps.values():
            part.path = path

    def densified(self) -> dict[str, Tensor]:
        """Write the means as a plain state dict of the caller's model, zeros and all."""
        found = {
            name: value.detach().clone()
            for name, value in self.model.state_dict().items()
            if isinstance(value, Tensor) and not name.endswith(_OWN)
        }
        for name, part in self.maps.items():
            for module in self.frames[name].modules:
                found[f"{module}.weight" if module else "weight"] = part.weight().clone()
        return found

    def connectivity(self) -> dict[str, list[float]]:
        """Share of active weights at each input of each map, in at most 1,024 bins."""
        found = {}
        for name, part in self.maps.items():
            pattern = part.pattern
            bins = min(pattern.columns, _MOST_BINS)
            places = torch.arange(pattern.columns) * bins // pattern.columns
            columns = (pattern.listed().cpu() % pattern.columns).long()
            counts = torch.bincount(places[columns], minlength=bins)
            sizes = torch.bincount(places, minlength=bins) * pattern.rows
            found[name] = (counts / sizes).tolist()
        return found

    def state_bytes(self, optimiser: torch.optim.Optimizer | None = None) -> int:
        """Bytes of the maps' weights in training: values, indices, optimiser state."""
        total = 0
        for part in self.maps.values():
            held = part.pattern.indices
            total += 0 if held is None else held.nbytes
            for value in (part.means, part.log_scales):
                if value is None:
                    continue
                total += value.nbytes
                if optimiser is not None:
                    state = optimiser.state.get(value, {}).values()
                    total += sum(
                        s.nbytes for s in state if isinstance(s, Tensor) and s.dim()
                    )
        return total


_MOST_BINS = 1024
_OWN = ("means", "log_scales", "_extra_state")


def sparse_bayesian(
    model: nn.Module,
    *,
    density: float = 0.1,
    budget: Budget = "uniform",
    maps: Sequence[str] | None = None,
    start: Start = "random",
    scale: float = 0.1,
    prior: Prior = None,
    deterministic: bool = False,
    noise: Noise = "local",
    path: Path | Literal["auto"] = "auto",
    seed: int = 0,
) -> SparseNetwork:
    """Make a network with sparse Gaussian weights from a copy of a model.

    Args:
        model: A new or a trained model; never changed.
        density: Active share of the weights of the chosen maps, in (0, 1].
        budget: How maps share the active weights, see `smidgen.sparse.budgets`.
        maps: Names of maps to treat, or patterns such as "layer1.*"; all Linear and
            ungrouped Conv2d if left out. All else of the model stays deterministic.
        start: "random" draws the active set and scales the model's weights there by
            1/√density, so that outputs keep their size: for a new model. "magnitude"
            keeps the largest weights as they are: for a trained one.
        scale: First σ of a weight, as a share of its prior's.
        prior: Standard deviation of the prior N(0, s²): one for all maps, or by name;
            if left out 1/√(active inputs of an output), map by map.
        deterministic: Hold points, without scales: sparse training without Bayes.
        noise: What training draws, see `SparseNetwork.set_noise`.
        path: How to compute, see `SparseNetwork.set_path`.
        seed: Seed of the active set and of the noise.

    Returns:
        The network, in training mode.

    Raises:
        ArgumentError: If an argument is outside what it may be.
    """
    if not scale > 0:
        raise ArgumentError(f"scale must be > 0, got {scale}.")
    if start not in ("random", "magnitude"):
        raise ArgumentError(f"start must be 'random' or 'magnitude', got {start!r}.")
    frames = _chosen(model, maps)
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: frame.shapes[frame.weight] for name, frame in frames.items()}
    counts = shares(shapes, density, budget)
    weights = {}
    for name, frame in frames.items():
        stored = model.get_parameter(frame.weight).detach()
        pattern, means = _started(stored, counts[name], start, generator)
        spread = _prior(prior, name, counts[name] / pattern.rows)
        logs = None if deterministic else torch.full_like(means, log(scale * spread))
        weights[name] = Weights(pattern, means, logs, spread)
    network = assembled(model, weights, budget=budget, generator=generator)
    network.set_noise(noise)
    network.set_path(path)
    return network


def assembled(
    model: nn.Module,
    weights: Mapping[str, Weights],
    *,
    budget: Budget,
    generator: torch.Generator,
) -> SparseNetwork:
    """Put Gaussian maps with given weights into a copy of a model.

    Args:
        model: The caller's model; never changed.
        weights: The active weights of each map to treat.
        budget: Whether maps may exchange active weights.
        generator: Source of all noise.

    Returns:
        The network, in training mode.
    """
    frames = _chosen(model, list(weights))
    copy = deepcopy(model)
    made = {}
    for name, frame in frames.items():
        plain = copy.get_submodule(frame.modules[0])
        _check_shape(name, plain, weights[name].pattern)
        made[name] = _gaussian(plain, weights[name], generator)
        for path in frame.modules:
            copy = _put(copy, path, made[name])
    priors = {name: weights[name].prior for name in frames}
    universe = affine_coverage(model).universe
    network = SparseNetwork(copy, made, frames, priors, universe, budget, generator)
    return network.to(next(model.parameters()).device).train()


def _check_shape(name: str, plain: nn.Module, pattern: Pattern) -> None:
    found = matrix_of(tuple(plain.get_parameter("weight").shape))
    if found != (pattern.rows, pattern.columns):
        raise StructureError(
            f"the weight of {name} must be {pattern.rows} × {pattern.columns}, the model's "
            f"is {found[0]} × {found[1]}. Give a model of the same shape."
        )


def _chosen(model: nn.Module, maps: Sequence[str] | None) -> dict[str, AffineMap]:
    """The maps that can be sparse and are wanted, by name."""
    found = {m.name: m for m in affine_coverage(model).maps if not m.transposed}
    patterns = ["*"] if maps is None else list(maps)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in found):
            raise ArgumentError(
                f"maps must name Linear or ungrouped Conv2d maps of the model, got "
                f"{pattern!r}. There are: {', '.join(found) or 'none'}."
            )
    return {n: m for n, m in found.items() if any(fnmatchcase(n, p) for p in patterns)}


def _started(
    stored: Tensor, count: int, start: Start, generator: torch.Generator
) -> tuple[Pattern, Tensor]:
    """The first active set of a weight, and its means."""
    rows, columns = matrix_of(tuple(stored.shape))
    flat = stored.flatten()
    total = flat.numel()
    if count == total:
        return Pattern(rows, columns), flat.clone()
    if start == "magnitude":
        order = flat.abs().argsort(descending=True, stable=True)
        pattern = Pattern(rows, columns, order[:count])
        return pattern, flat[pattern.listed()]
    order = torch.randperm(total, generator=generator).to(flat.device)
    pattern = Pattern(rows, columns, order[:count])
    return pattern, flat[pattern.listed()] * sqrt(total / count)


def _prior(prior: Prior, name: str, fan_in: float) -> float:
    if prior is None:
        return 1 / sqrt(fan_in)
    if isinstance(prior, Mapping) and name not in prior:
        raise ArgumentError(
            f"prior must have a number for every map, got none for {name!r}."
        )
    found = float(prior[name] if isinstance(prior, Mapping) else prior)
    if not found > 0:
        raise ArgumentError(f"prior must be > 0, got {found} for {name!r}.")
    return found


def _gaussian(
    plain: nn.Module, weights: Weights, generator: torch.Generator
) -> GaussianMap:
    assert isinstance(plain, (nn.Linear, nn.Conv2d))
    shape = tuple(plain.weight.shape)
    bias = None if plain.bias is None else plain.bias.detach()
    given = (shape, weights.pattern, weights.means, weights.log_scales, bias, generator)
    if isinstance(plain, nn.Conv2d):
        return GaussianConv2d.like(plain, *given)
    return GaussianLinear(*given)


def _put(model: nn.Module, path: str, part: GaussianMap) -> nn.Module:
    """Replace a module of the copy; the model itself may be that module."""
    if not path:
        return part
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, part)
    return model
