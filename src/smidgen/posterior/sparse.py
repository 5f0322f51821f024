"""`SparsePosterior`: what SSVI trains, Gaussian weights on a sparse active set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Config, Posterior, SampleCalibration, Sampler, Tensors
from smidgen.runtime.reading import make_from_json
from smidgen.sparse.architectures import PlainNetwork
from smidgen.sparse.budgets import Budget
from smidgen.sparse.build import assemble_network
from smidgen.sparse.network import SparseNetwork
from smidgen.sparse.rewire import ActiveSetChange
from smidgen.sparse.store import (
    describe_layers,
    pack_tensors,
    restore_rest,
    unpack_weights,
)
from smidgen.sparse.training import SparseEpoch
from smidgen.weights.origin import Origin
from smidgen.weights.subset import Subset


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SparsePosterior(Posterior):
    """A network with independent Gaussian weights where active, exact zeros elsewhere.

    It holds the whole network: of the model it is used with, only the structure matters.

    Args:
        network: The network, in evaluation mode; its active set is the subset.
        history: What training reported after each epoch.
        changes: How the active set changed, in order.
        state_bytes: Bytes that training kept for the weights: values, indices, momentum.
        derived_bytes: Bytes that the sparse path derives from the indices and keeps.
        plain: How to build the plain model, if known: then `load` needs no model.
        notes: What else to note in its folder, such as seed and data.
    """

    network: SparseNetwork
    num_data: int = 0
    calibration: SampleCalibration | None = None
    history: tuple[SparseEpoch, ...] = ()
    changes: tuple[ActiveSetChange, ...] = ()
    state_bytes: int = 0
    derived_bytes: int = 0
    plain: PlainNetwork | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    subset: Subset = field(init=False)
    fingerprint: str = field(init=False, default="")
    method = "ssvi"
    packed_types = {
        "model": dict | None,
        "about": dict,
        "budget": Budget,
        "maps": dict[str, dict[str, Any]],
    }

    def __post_init__(self) -> None:
        origin = Origin(self.method, {"density": self.network.density})
        object.__setattr__(self, "subset", replace(self.network.subset(), origin=origin))
        super().__post_init__()

    @property
    def floats(self) -> int:
        """Means and scales of the active weights."""
        return self.network.count * (2 if self.network.stochastic else 1)

    @property
    def stochastic(self) -> bool:
        """Whether its weights have scales."""
        return self.network.stochastic

    def require(self, model: nn.Module) -> None:
        """Refuse a model of another structure; its weights do not matter."""
        if model is self.network or model is self.network.model:
            return
        if isinstance(model, SparseNetwork):
            shapes = model.universe
        else:
            shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        for name, shape in self.network.universe.items():
            if shapes.get(name) != shape:
                raise ArgumentError(
                    f"model must have the structure the posterior was trained with: "
                    f"{name!r} of shape {shape}, got {shapes.get(name, 'no such weight')}. "
                    "Pass the model given to fit.ssvi."
                )

    def for_copy(self, model: nn.Module, copy: nn.Module) -> Self:
        """Return itself: the weights of a model it predicts for do not matter."""
        self.require(model)
        self.require(copy)
        return self

    def point_model(self, model: nn.Module) -> nn.Module:
        """The network at its means, in evaluation mode; the model's weights are not used."""
        return self.network.model

    def sampler(self, model: nn.Module) -> Sampler:
        """Prepare draws of the active weights, which stand in for the means."""
        names = {id(value): name for name, value in self.network.model.named_parameters()}
        layers = [(names[id(part.means)], part) for part in self.network.layers.values()]

        def draw(generator: torch.Generator) -> dict[str, Tensor]:
            return {name: part.draw(generator).detach() for name, part in layers}

        return lambda generators: map(draw, generators)

    def settings(self) -> dict[str, Any]:
        """List what was chosen on held-out data, as a record notes it."""
        return {
            **super().settings(),
            "density": self.network.density,
            "samples": self.samples if self.stochastic else 0,
        }

    def summary(self) -> dict[str, Any]:
        """List its size and how held-out data chose it, as JSON takes it."""
        return {**super().summary(), "density": self.network.density}

    def record_config(self) -> dict[str, Any]:
        """List what identifies it, as the config of a record notes it."""
        # "auto" chooses a path by the clock, and sums in another order end in other bits.
        paths = {name: layer.path for name, layer in self.network.layers.items()}
        return {**super().record_config(), **self.settings(), "paths": paths}

    def headline(self) -> str:
        """Name the density."""
        return f"density {self.network.density:.3g}"

    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Split the network into tensors and settings."""
        return pack_tensors(self.network), {
            "model": None if self.plain is None else asdict(self.plain),
            "about": dict(self.notes),
            **describe_layers(self.network),
        }

    @classmethod
    def unpack(
        cls, tensors: Tensors, config: Config, problem: Problem, common: Config
    ) -> Self:
        """Put the network together in a copy of the model, checking every shape."""
        network = assemble_network(
            problem.model,
            unpack_weights(tensors, config),
            budget=config["budget"],
            generator=torch.Generator().manual_seed(0),
        )
        restore_rest(network, tensors, config)
        plain = config["model"]
        return cls(
            network=network.eval(),
            plain=None if plain is None else make_from_json(PlainNetwork, plain),
            notes=config["about"],
            **common,
        )

    def describe(self) -> str:
        """Describe it, for the card of its folder."""
        network = self.network
        kind = "Gaussian" if network.stochastic else "deterministic"
        return f"""A sparse network of {kind} weights: {network.count:,} of {network.total:,}
weights in {len(network.layers)} layers are active ({network.density:.3%}); all others are
exactly zero. Temperature {self.temperature:.4g}."""

    def card(self) -> str:
        """Write the README of its folder."""
        model, loaded = "posterior.network", '"this-folder")  # no model is needed'
        if self.plain is None:
            model, loaded = "model", '"this-folder", model)  # only its structure matters'
        return f"""---
library_name: smidgen
tags: [bayesian, variational-inference, sparse]
---
# A posterior over {self.subset.size:,} weights

{self.describe()}

```python
import smidgen

posterior = smidgen.load({loaded}
predictive = smidgen.predict(posterior, {model}, batch)
state = posterior.network.dense_state_dict()  # a plain state dict of the means
```
"""

    def __repr__(self) -> str:
        network = self.network
        return (
            f"SparsePosterior({network.count:,} of {network.total:,} weights in "
            f"{len(network.layers)} layers, density {network.density:.3g}, temperature "
            f"{self.temperature:.3g})"
        )
