"""From a model to a sparse Gaussian network: a copy whose layers hold k weights each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import log, sqrt
from typing import Literal

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError, StructureError
from smidgen.sparse.budgets import Budget, shares
from smidgen.sparse.layers import (
    GaussianConv2d,
    GaussianLayer,
    GaussianLinear,
    Noise,
    matrix_of,
)
from smidgen.sparse.matmul import Path
from smidgen.sparse.network import SparseNetwork, paths_of
from smidgen.sparse.pattern import Pattern
from smidgen.weights.affine import AffineLayer, require_coverage

Start = Literal["random", "magnitude"]
Prior = float | Mapping[str, float] | None


@dataclass(frozen=True, eq=False)
class Weights:
    """The active weights of one layer, the scale of their prior and its density."""

    pattern: Pattern
    means: Tensor
    log_scales: Tensor | None
    prior: float


def make_sparse(
    model: nn.Module,
    *,
    density: float = 0.1,
    budget: Budget = "uniform",
    layers: Sequence[str] | None = None,
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
        density: Active share of the weights of the chosen layers, in (0, 1].
        budget: How layers share the active weights, see `smidgen.sparse.budgets`.
        layers: Names of layers to treat, or patterns such as "layer1.*"; all Linear and
            ungrouped Conv2d whose weight is not frozen if left out. A frozen one that is
            named is trained. All else of the model stays deterministic.
        start: "random" draws the active set and scales the model's weights there by
            1/√density, so that outputs keep their size: for a new model. "magnitude"
            keeps the largest weights as they are: for a trained one.
        scale: First σ of a weight, as a share of its prior's.
        prior: Standard deviation of the prior N(0, s²): one for all layers, or by name;
            if left out 1/√(active inputs of an output), layer by layer, as they are at the
            start: it stays when layers exchange weights (`budget="global"`).
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
    frames = _chosen(model, layers)
    if layers is None:
        frames = _trainable(model, frames)
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
    """Put Gaussian layers with given weights into a copy of a model.

    Args:
        model: The caller's model; never changed.
        weights: The active weights of each layer to treat.
        budget: Whether layers may exchange active weights.
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
        twins = [copy.get_submodule(path) for path in frame.modules]
        for path in [path for twin in twins for path in paths_of(copy, twin)]:
            copy = _put(copy, path, made[name])
    priors = {name: weights[name].prior for name in frames}
    universe = require_coverage(model).universe
    network = SparseNetwork(copy, made, frames, priors, universe, budget, generator)
    return network.to(next(model.parameters()).device).train()


def _check_shape(name: str, plain: nn.Module, pattern: Pattern) -> None:
    found = matrix_of(tuple(plain.get_parameter("weight").shape))
    if found != (pattern.rows, pattern.columns):
        raise StructureError(
            f"the weight of {name} must be {pattern.rows} × {pattern.columns}, the model's "
            f"is {found[0]} × {found[1]}. Give a model of the same shape."
        )


def _chosen(model: nn.Module, layers: Sequence[str] | None) -> dict[str, AffineLayer]:
    """The layers that can be sparse and are wanted, by name."""
    found = {m.name: m for m in require_coverage(model).layers if not m.transposed}
    patterns = ["*"] if layers is None else list(layers)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in found):
            raise ArgumentError(
                f"layers must name Linear or ungrouped Conv2d layers of the model, got "
                f"{pattern!r}. There are: {', '.join(found) or 'none'}."
            )
    return {n: m for n, m in found.items() if any(fnmatchcase(n, p) for p in patterns)}


def _trainable(
    model: nn.Module, frames: Mapping[str, AffineLayer]
) -> dict[str, AffineLayer]:
    found = {n: f for n, f in frames.items() if model.get_parameter(f.weight).requires_grad}
    if not found:
        raise ArgumentError(
            f"layers must be given where all weights are frozen; there are: "
            f"{', '.join(frames)}. Name some, or unfreeze the model."
        )
    return found


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
            f"prior must have a number for every layer, got none for {name!r}."
        )
    found = float(prior[name] if isinstance(prior, Mapping) else prior)
    if not found > 0:
        raise ArgumentError(f"prior must be > 0, got {found} for {name!r}.")
    return found


def _gaussian(
    plain: nn.Module, weights: Weights, generator: torch.Generator
) -> GaussianLayer:
    assert isinstance(plain, (nn.Linear, nn.Conv2d))
    shape = tuple(plain.weight.shape)
    bias = None if plain.bias is None else plain.bias.detach()
    given = (shape, weights.pattern, weights.means, weights.log_scales, bias, generator)
    made: GaussianLayer
    if isinstance(plain, nn.Conv2d):
        made = GaussianConv2d.like(plain, *given)
    else:
        made = GaussianLinear(*given)
    if made.bias is not None and plain.bias is not None:
        made.bias.requires_grad_(plain.bias.requires_grad)
    return made


def _put(model: nn.Module, path: str, part: GaussianLayer) -> nn.Module:
    """Replace a module of the copy; the model itself may be that module."""
    if not path:
        return part
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, part)
    return model
