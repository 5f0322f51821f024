"""From a model to a sparse Gaussian network: a copy whose layers hold k weights each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import log, sqrt
from typing import Literal, cast

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError, StructureError
from smidgen.runtime.keeping.structure import unwrap
from smidgen.sparse.budgets import Budget, share_out
from smidgen.sparse.layers import (
    GaussianConv2d,
    GaussianLayer,
    GaussianLinear,
    NoiseKind,
    matrix_shape,
)
from smidgen.sparse.matmul import Path
from smidgen.sparse.network import SparseNetwork, find_paths
from smidgen.sparse.pattern import Pattern
from smidgen.weights.affine import AffineLayer, require_coverage
from smidgen.weights.subset import Subset

FirstWeights = Literal["random", "magnitude"]

_DENSITY = 0.1


@dataclass(frozen=True)
class SparseSettings:
    """How the layers of a sparse network are made, and how they compute.

    Args:
        budget: How layers share the active weights, see `smidgen.sparse.budgets`.
        layers: Names of the layers to make sparse, or patterns such as "layer1.*". By
            default every Linear and ungrouped Conv2d whose weight is not frozen, or, with
            a subset, every layer it has weights of. A frozen layer named here is trained.
            The rest of the model stays deterministic.
        scale: First σ of a weight, as a multiple of its prior's standard deviation.
        prior: Standard deviation s of the prior N(0, s²): one for all layers, or one for
            each by name. By default 1/√(active inputs per output) of each layer as it
            starts; it stays so when layers exchange weights (`budget="global"`).
        deterministic: Give the weights no scales: sparse training without Bayes.
        noise: What training draws, see `SparseNetwork.set_noise`.
        path: How to compute, see `SparseNetwork.set_path`.

    Raises:
        ArgumentError: If scale or prior is not positive.
    """

    budget: Budget = "uniform"
    layers: Sequence[str] | None = None
    scale: float = 0.1
    prior: float | Mapping[str, float] | None = None
    deterministic: bool = False
    noise: NoiseKind = "local"
    path: Path | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ArgumentError(f"scale must be > 0, got {self.scale}.")
        priors = self.prior.values() if isinstance(self.prior, Mapping) else [self.prior]
        if not all(prior is None or prior > 0 for prior in priors):
            raise ArgumentError(f"prior must be > 0, got {self.prior}.")


@dataclass(frozen=True, eq=False)
class ActiveWeights:
    """Active weights of one layer, and the standard deviation of their prior."""

    pattern: Pattern
    means: Tensor
    log_scales: Tensor | None
    prior: float


def make_sparse(
    model: nn.Module,
    subset: Subset | None = None,
    *,
    density: float | None = None,
    start: FirstWeights | None = None,
    settings: SparseSettings | None = None,
    seed: int = 0,
) -> SparseNetwork:
    """Make a network with sparse Gaussian weights from a copy of a model.

    Args:
        model: A new or a trained model; never changed.
        subset: The first active weights. Biases in it change nothing: a sparse layer
            trains its whole bias, without noise.
        density: Active fraction of the sparse layers' weights, in (0, 1]; 0.1 by default.
            Leave it out if there is a subset.
        start: "random" is for a new model: it draws the active weights (unless they are
            a subset) and multiplies their values by 1/√density of the layer, so that
            outputs keep their size. "magnitude" is for a trained model: it takes the
            largest weights (or the subset) with the values they have. By default
            "random", or "magnitude" with a subset.
        settings: How the layers are made; `SparseSettings()` by default.
        seed: Seed of the active weights and of the noise.

    Returns:
        The network, in training mode.

    Raises:
        ArgumentError: If an argument is out of range, or does not fit the model.
    """  # noqa: DOC502
    model, settings = unwrap(model), settings or SparseSettings()
    start = start or ("random" if subset is None else "magnitude")
    if start not in ("random", "magnitude"):
        raise ArgumentError(f"start must be 'random' or 'magnitude', got {start!r}.")
    frames = _find_layers(model, settings.layers)
    generator = torch.Generator().manual_seed(seed)
    patterns = (
        _draw_patterns(model, frames, density, start, settings, generator)
        if subset is None
        else _read_patterns(frames, subset, density, settings)
    )
    weights = {}
    for name, pattern in patterns.items():
        values = model.get_parameter(frames[name].weight).detach().flatten()
        means = values[pattern.list_indices(values.device)]
        if start == "random":
            means = means * sqrt(pattern.total / pattern.count)
        prior = _find_prior(settings, name, pattern.count / pattern.rows)
        log_scale = log(settings.scale * prior)
        scales = None if settings.deterministic else torch.full_like(means, log_scale)
        weights[name] = ActiveWeights(pattern, means, scales, prior)
    network = assemble_network(model, weights, budget=settings.budget, generator=generator)
    network.set_noise(settings.noise)
    network.set_path(settings.path)
    return network


def assemble_network(
    model: nn.Module,
    weights: Mapping[str, ActiveWeights],
    *,
    budget: Budget,
    generator: torch.Generator,
) -> SparseNetwork:
    """Put Gaussian layers with these weights into a copy of a model, in training mode."""
    frames = _find_layers(model, list(weights))
    copy = deepcopy(model)
    layers = {}
    for name, frame in frames.items():
        pattern, shape = weights[name].pattern, matrix_shape(frame.shapes[frame.weight])
        if shape != (pattern.rows, pattern.columns):
            raise StructureError(
                f"the weight of {name} must be {pattern.rows} × {pattern.columns}, the "
                f"model's is {shape[0]} × {shape[1]}. Give a model of the same shape."
            )
        replaced = copy.get_submodule(frame.modules[0])
        layers[name] = _make_layer(replaced, weights[name], generator)
        # Tied weights: several modules run the layer, each perhaps under several paths.
        tied = [copy.get_submodule(path) for path in frame.modules]
        for path in [path for module in tied for path in find_paths(copy, module)]:
            copy = _replace_module(copy, path, layers[name])
    priors = {name: weights[name].prior for name in frames}
    universe = require_coverage(model).universe
    network = SparseNetwork(copy, layers, frames, priors, universe, budget, generator)
    return network.to(next(model.parameters()).device).train()


def _find_layers(
    model: nn.Module, patterns: Sequence[str] | None
) -> dict[str, AffineLayer]:
    """The layers that can be sparse and match a pattern, by name."""
    layers = {m.name: m for m in require_coverage(model).layers if _can_be_sparse(m)}
    if patterns is None:
        return layers
    matched: set[str] = set()
    for pattern in patterns:
        names = [name for name in layers if fnmatchcase(name, pattern)]
        if not names:
            raise ArgumentError(
                f"layers must name Linear or ungrouped Conv2d layers of the model, got "
                f"{pattern!r}. There are: {', '.join(layers) or 'none'}."
            )
        matched.update(names)
    return {name: layer for name, layer in layers.items() if name in matched}


def _can_be_sparse(layer: AffineLayer) -> bool:
    """Whether a Gaussian layer can take its place: Linear, or Conv2d in one group."""
    # GPT-2's Conv1D stores its weight transposed, which `GaussianLinear` does not read.
    axes = {"linear": 2, "convolution": 4}.get(layer.kind)
    return len(layer.shape) == axes and layer.row_axes == (0,) and layer.groups == 1


def _draw_patterns(
    model: nn.Module,
    frames: Mapping[str, AffineLayer],
    density: float | None,
    start: FirstWeights,
    settings: SparseSettings,
    generator: torch.Generator,
) -> dict[str, Pattern]:
    """The first active weights of each layer: random ones, or the largest."""
    stored = {n: model.get_parameter(frame.weight) for n, frame in frames.items()}
    if settings.layers is None:
        stored = {name: weight for name, weight in stored.items() if weight.requires_grad}
    if not stored:
        raise ArgumentError(
            f"settings.layers must name the layers to train where all weights are frozen. "
            f"There are: {', '.join(frames)}. Name some, or unfreeze the model."
        )
    shapes = {name: frames[name].shapes[frames[name].weight] for name in stored}
    density = _DENSITY if density is None else density
    patterns = {}
    for name, count in share_out(shapes, density, settings.budget).items():
        rows, columns = matrix_shape(shapes[name])
        indices = None
        if count < rows * columns and start == "magnitude":
            sizes = stored[name].detach().flatten().abs()
            indices = sizes.argsort(descending=True, stable=True)[:count]
        elif count < rows * columns:
            order = torch.randperm(rows * columns, generator=generator)
            indices = order[:count].to(stored[name].device)
        patterns[name] = Pattern(rows, columns, indices)
    return patterns


def _read_patterns(
    frames: Mapping[str, AffineLayer],
    subset: Subset,
    density: float | None,
    settings: SparseSettings,
) -> dict[str, Pattern]:
    """The subset's weights of each layer."""
    if density is not None:
        raise ArgumentError(
            f"density must be left out if there is a subset, got {density}. The subset "
            "says which weights are active."
        )
    chosen = {n: frame for n, frame in frames.items() if frame.weight in subset.parts}
    empty = [name for name in frames if name not in chosen]
    if not chosen or (settings.layers is not None and empty):
        raise ArgumentError(
            f"subset must hold weights of every layer to make sparse, got none of "
            f"{', '.join(empty)}. Choose weights of Linear or ungrouped Conv2d layers."
        )
    known = {name for frame in frames.values() for name in frame.shapes}
    foreign = [name for name in subset.parts if name not in known]
    if foreign and settings.layers is None:
        raise ArgumentError(
            f"subset must choose weights of Linear or ungrouped Conv2d layers of the "
            f"model, got {foreign[0]!r}. Name the layers in settings.layers to leave the "
            "rest of the subset out."
        )
    patterns = {}
    for name, frame in chosen.items():
        shape = frame.shapes[frame.weight]
        if subset.universe[frame.weight] != shape:
            raise ArgumentError(
                f"subset must be of this model: {frame.weight} has shape {shape}, in the "
                f"subset {subset.universe[frame.weight]}."
            )
        patterns[name] = Pattern(*matrix_shape(shape), subset.indices(frame.weight))
    return patterns


def _find_prior(settings: SparseSettings, name: str, fan_in: float) -> float:
    prior = settings.prior
    if isinstance(prior, Mapping):
        if name not in prior:
            raise ArgumentError(
                f"prior must have a number for every layer, got none for {name!r}."
            )
        prior = prior[name]
    return 1 / sqrt(fan_in) if prior is None else float(prior)


def _make_layer(
    module: nn.Module, weights: ActiveWeights, generator: torch.Generator
) -> GaussianLayer:
    assert isinstance(module, (nn.Linear, nn.Conv2d))
    shape = tuple(module.weight.shape)
    bias = cast("nn.Parameter | None", module.bias)
    values = (shape, weights.pattern, weights.means, weights.log_scales, bias)
    if isinstance(module, nn.Conv2d):
        return GaussianConv2d.like(module, *values, generator)
    return GaussianLinear(*values, generator)


def _replace_module(model: nn.Module, path: str, layer: GaussianLayer) -> nn.Module:
    """Replace a module of the copy; the model itself may be that module."""
    if not path:
        return layer
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, layer)
    return model
