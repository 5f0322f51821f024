"""`SparseNetwork`: a model some of whose layers hold k weights each, sparse and Gaussian."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any, Literal

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError, StructureError
from smidgen.sparse.budgets import Budget
from smidgen.sparse.layers import GaussianLayer, NoiseKind
from smidgen.sparse.matmul import Path
from smidgen.types import Shape
from smidgen.weights.affine import AffineLayer
from smidgen.weights.subset import Entries, Part, Subset, Whole

_MOST_BINS = 1024
# What the state dict of a Gaussian layer holds in place of a weight.
_LAYER_STATE = ("means", "log_scales", "_extra_state")


class SparseNetwork(nn.Module):
    """A model some of whose layers are sparse and Gaussian.

    Args:
        model: A copy of the caller's model, with the Gaussian layers in place.
        layers: The Gaussian layers by name.
        frames: The layers of the caller's model that they replace.
        priors: Standard deviation of each layer's prior.
        universe: All parameters of affine layers of the caller's model.
        budget: Whether layers may exchange active weights.
        generator: Source of all noise.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Mapping[str, GaussianLayer],
        frames: Mapping[str, AffineLayer],
        priors: Mapping[str, float],
        universe: Mapping[str, Shape],
        budget: Budget,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.model = model
        self.layers = dict(layers)
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
        return sum(layer.pattern.count for layer in self.layers.values())

    @property
    def total(self) -> int:
        """Weights of the layers, active or not."""
        return sum(layer.pattern.total for layer in self.layers.values())

    @property
    def density(self) -> float:
        """Active fraction of the layers' weights, in (0, 1]."""
        return self.count / self.total

    @property
    def stochastic(self) -> bool:
        """Whether weights have scales, or are points."""
        return any(layer.log_scales is not None for layer in self.layers.values())

    @property
    def derived_bytes(self) -> int:
        """Bytes of the orders that the sparse path derives from the indices and keeps."""
        return sum(layer.pattern.derived_bytes for layer in self.layers.values())

    def subset(self) -> Subset:
        """Describe the current active set by the names of the caller's model."""
        parts: dict[str, Part] = {}
        for name, layer in self.layers.items():
            indices = layer.pattern.indices
            part = Whole() if indices is None else Entries(indices)
            parts[self.frames[name].weight] = part
        return Subset(self.universe, parts)

    def kl(self) -> Tensor:
        """Compute KL(q ‖ prior) of the active weights in closed form, a scalar.

        Returns:
            Σ log(s/σ) + (σ² + μ²)/(2s²) − ½, with the prior N(0, s²) of each layer.

        Raises:
            StructureError: If the weights are points.
        """
        terms = []
        for name, layer in self.layers.items():
            if layer.log_scales is None:
                raise StructureError(
                    "a network without noise has no KL term. Make it with "
                    "deterministic=False."
                )
            prior, count = self.priors[name], layer.pattern.count
            squares = layer.means.square().sum() + (2 * layer.log_scales).exp().sum()
            constant = count * (log(prior) - 0.5)
            terms.append(squares / (2 * prior**2) - layer.log_scales.sum() + constant)
        return torch.stack(terms).sum()

    def set_noise(self, noise: NoiseKind) -> None:
        """Choose what training draws: outputs, one set of weights a batch, or nothing."""
        if noise not in ("local", "weights", "none"):
            raise ArgumentError(
                f"noise must be 'local', 'weights' or 'none', got {noise!r}."
            )
        for layer in self.layers.values():
            layer.noise = noise if layer.log_scales is not None else "none"

    def set_path(self, path: Path | Literal["auto"]) -> None:
        """Choose how to compute; "auto" goes by each layer's size and density."""
        if path not in ("auto", "dense", "sparse"):
            raise ArgumentError(f"path must be 'auto', 'dense' or 'sparse', got {path!r}.")
        for layer in self.layers.values():
            layer.path = path

    def dense_state_dict(self) -> dict[str, Tensor]:
        """Write the means as a plain state dict of the caller's model, zeros and all."""
        state = self.model.state_dict()
        for layer in self.layers.values():
            for path in find_paths(self.model, layer):
                prefix = f"{path}." if path else ""
                for name in _LAYER_STATE:
                    state.pop(prefix + name, None)
                state[f"{prefix}weight"] = layer.to_dense()
        return {
            name: value.detach().clone()
            for name, value in state.items()
            if isinstance(value, Tensor)
        }

    def remaining_state(self) -> dict[str, Tensor]:
        """List parameters and buffers that are no Gaussian layer's values, each once."""
        values = [v for x in self.layers.values() for v in (x.means, x.log_scales)]
        gaussian = {id(value) for value in values}
        parameters: dict[str, Tensor] = {
            name: value
            for name, value in self.model.named_parameters()
            if id(value) not in gaussian
        }
        return parameters | dict(self.model.named_buffers())

    def connectivity(self) -> dict[str, list[float]]:
        """Compute the active fraction at each input of each layer, in up to 1,024 bins."""
        fractions = {}
        for name, layer in self.layers.items():
            pattern = layer.pattern
            bins = min(pattern.columns, _MOST_BINS)
            bin_of = torch.arange(pattern.columns) * bins // pattern.columns
            columns = (pattern.list_indices().cpu() % pattern.columns).long()
            counts = torch.bincount(bin_of[columns], minlength=bins).float()
            sizes = torch.bincount(bin_of, minlength=bins) * pattern.rows
            fractions[name] = (counts / sizes).tolist()
        return fractions

    def state_bytes(self, optimiser: torch.optim.Optimizer | None = None) -> int:
        """Count the bytes of training: the layers' values, indices, optimiser state."""
        tensors: list[Tensor | None] = []
        for layer in self.layers.values():
            tensors.append(layer.pattern.indices)
            for parameter in (layer.means, layer.log_scales):
                tensors.append(parameter)
                if optimiser is not None and parameter is not None:
                    tensors += optimiser.state.get(parameter, {}).values()
        # Counters of steps are numbers, not state of a weight.
        return sum(t.nbytes for t in tensors if isinstance(t, Tensor) and t.dim())


def find_paths(model: nn.Module, module: nn.Module) -> list[str]:
    """Find all paths of a module in a model, which may hold it more than once."""
    modules = model.named_modules(remove_duplicate=False)
    return [path for path, candidate in modules if candidate is module]
