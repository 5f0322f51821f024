"""`SparseNetwork`: a model some of whose layers hold k weights each, sparse and Gaussian."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import log
from typing import Any, Literal

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError, StructureError
from smidgen.outputs.likelihood import Likelihood
from smidgen.sparse.architectures import PlainNetwork
from smidgen.sparse.budgets import Budget
from smidgen.sparse.layers import GaussianLayer, NoiseKind
from smidgen.sparse.matmul import Path
from smidgen.types import Shape
from smidgen.weights.affine import AffineLayer
from smidgen.weights.subset import Entries, Part, Subset, Whole

_MOST_BINS = 1024
_OWN = ("means", "log_scales", "_extra_state")


class SparseNetwork(nn.Module):
    """A model some of whose layers are sparse and Gaussian.

    Args:
        model: The copy with its layers in place; its other parts are as they were.
        layers: The Gaussian layers by name.
        frames: What each was in the caller's model.
        priors: Standard deviation of each layer's prior.
        universe: All parameters of affine layers of the caller's model.
        budget: Whether layers may exchange active weights.
        generator: Source of all noise.
        plain: What built the model, if known: then a saved network needs no model.
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
        plain: PlainNetwork | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.layers = dict(layers)
        self.frames = dict(frames)
        self.priors = dict(priors)
        self.universe = dict(universe)
        self.budget: Budget = budget
        self.generator = generator
        self.plain = plain
        # What its outputs mean, once it was trained.
        self.likelihood: Likelihood | None = None

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Call the model; in training mode with noise, in evaluation mode on the means."""
        return self.model(*inputs, **named)

    @property
    def count(self) -> int:
        """Active weights."""
        return sum(part.pattern.count for part in self.layers.values())

    @property
    def total(self) -> int:
        """Weights of the layers, active or not."""
        return sum(part.pattern.total for part in self.layers.values())

    @property
    def density(self) -> float:
        """Active share of the layers' weights, in (0, 1]."""
        return self.count / self.total

    @property
    def stochastic(self) -> bool:
        """Whether weights have scales, or are points."""
        return any(part.log_scales is not None for part in self.layers.values())

    def subset(self) -> Subset:
        """Describe the active set as it is now, in the caller's names."""
        parts: dict[str, Part] = {}
        for name, part in self.layers.items():
            held = part.pattern.indices
            weight = self.frames[name].weight
            parts[weight] = Whole() if held is None else Entries(held)
        return Subset(self.universe, parts)

    def kl(self) -> Tensor:
        """KL(q ‖ prior) of the active weights in closed form, a scalar.

        Returns:
            Σ log(s/σ) + (σ² + μ²)/(2s²) − ½, with the prior N(0, s²) of each layer.

        Raises:
            StructureError: If the weights are points.
        """
        found = []
        for name, part in self.layers.items():
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
            for part in self.layers.values():
                part.drawn = part.draw(generator).detach()
            yield
        finally:
            for part in self.layers.values():
                part.drawn = None

    def set_noise(self, noise: NoiseKind) -> None:
        """Choose what training draws: outputs, one set of weights a batch, or nothing."""
        if noise not in ("local", "weights", "none"):
            raise ArgumentError(
                f"noise must be 'local', 'weights' or 'none', got {noise!r}."
            )
        for part in self.layers.values():
            part.noise = noise if part.log_scales is not None else "none"

    def set_path(self, path: Path | Literal["auto"]) -> None:
        """Choose how to compute; "auto" times both in every layer's next forward pass."""
        if path not in ("auto", "dense", "sparse"):
            raise ArgumentError(f"path must be 'auto', 'dense' or 'sparse', got {path!r}.")
        for part in self.layers.values():
            part.path = path

    def dense_state_dict(self) -> dict[str, Tensor]:
        """Write the means as a plain state dict of the caller's model, zeros and all."""
        places = [
            (path, part)
            for part in self.layers.values()
            for path in find_paths(self.model, part)
        ]
        own = {_key(path, name) for path, _ in places for name in _OWN}
        found = {
            name: value.detach().clone()
            for name, value in self.model.state_dict().items()
            if isinstance(value, Tensor) and name not in own
        }
        return found | {
            _key(path, "weight"): part.weight().clone() for path, part in places
        }

    def rest(self) -> dict[str, Tensor]:
        """Parameters and buffers that are not values of a Gaussian layer, each once."""
        values = [v for part in self.layers.values() for v in (part.means, part.log_scales)]
        own = {id(value) for value in values}
        named = self.model.named_parameters()
        found: dict[str, Tensor] = {n: value for n, value in named if id(value) not in own}
        return found | dict(self.model.named_buffers())

    def connectivity(self) -> dict[str, list[float]]:
        """Share of active weights at each input of each layer, in at most 1,024 bins."""
        found = {}
        for name, part in self.layers.items():
            pattern = part.pattern
            bins = min(pattern.columns, _MOST_BINS)
            places = torch.arange(pattern.columns) * bins // pattern.columns
            columns = (pattern.list_indices().cpu() % pattern.columns).long()
            counts = torch.bincount(places[columns], minlength=bins).float()
            sizes = torch.bincount(places, minlength=bins) * pattern.rows
            found[name] = (counts / sizes).tolist()
        return found

    @property
    def derived_bytes(self) -> int:
        """Bytes of the orders that the sparse path derives from the indices and keeps."""
        return sum(part.pattern.derived_bytes for part in self.layers.values())

    def state_bytes(self, optimiser: torch.optim.Optimizer | None = None) -> int:
        """Bytes of the layers' weights in training: values, indices, optimiser state."""
        total = 0
        for part in self.layers.values():
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


def find_paths(model: nn.Module, module: nn.Module) -> list[str]:
    """All paths of a module in a model: it may be there more than once."""
    everything = model.named_modules(remove_duplicate=False)
    return [path for path, each in everything if each is module]


def _key(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
