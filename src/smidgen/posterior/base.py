"""`Posterior`: a distribution over some weights of a model, whatever its shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError, StructureError
from smidgen.outputs.likelihood import Likelihood
from smidgen.outputs.problem import Problem
from smidgen.posterior.output_covariance import CovarianceTerm
from smidgen.runtime.fingerprint import require_fingerprint
from smidgen.weights.blocks import LayerBlock
from smidgen.weights.subset import Subset

SAMPLES = 32
"""Draws of the weights unless told otherwise."""

Sampler = Callable[[Sequence[torch.Generator]], Iterator[dict[str, Tensor]]]
"""Draws weights, once from each generator: the parameters that a draw changes, by name."""


@dataclass(frozen=True)
class Calibration:
    """How prior precision and temperature were chosen: validation NLL over the whole grid.

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


@dataclass(frozen=True)
class SampleCalibration:
    """How the temperature, or a regression's noise, was chosen for prediction by draws.

    Args:
        nll: Validation NLL of the draws' mixture at temperature 1, or with the noise
            that suits a regression's point estimate.
        chosen_nll: The same at the chosen temperature or noise.
        map_nll: NLL of the point estimate, likewise.
        map_scale: The best temperature or noise of the point estimate.
        map_scaled_nll: NLL of the point estimate with that.
        examples: How many validation examples.
        samples: How many draws of the weights.
    """

    nll: float
    chosen_nll: float
    map_nll: float
    map_scale: float
    map_scaled_nll: float
    examples: int
    samples: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Posterior(ABC):
    """A distribution over a subset of a model's weights; all others stay fixed.

    A new kind says how it is drawn (`sampler`) and how it is stored (`pack`, `unpack`);
    one row in `smidgen.posterior.registry` makes it known.

    Args:
        subset: The stochastic weights.
        likelihood: What the model's outputs mean.
        num_data: How many training examples it was fitted to; 0 if not counted.
        fingerprint: Hash of the weights of the model it belongs to.
        temperature: Divides the logits.
        calibration: How held-out data chose what `calibrate` chooses, if they did.
    """

    subset: Subset
    likelihood: Likelihood
    num_data: int
    fingerprint: str
    temperature: float = 1.0
    calibration: Calibration | SampleCalibration | None = field(default=None, repr=False)
    method: ClassVar[str]
    """The name of its fit, its row in the registry and what a folder calls it."""
    linearised: ClassVar[bool] = False
    """Whether it predicts through the linearised model, or else by draws."""
    packed_types: ClassVar[Mapping[str, type | tuple[type, ...]]] = {}
    """The settings that `pack` always writes, and their types."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", float(self.temperature))
        require_positive("temperature", self.temperature)

    @abstractmethod
    def sampler(self, model: nn.Module) -> Sampler:
        """Prepare draws: each gives other values of some parameters of `point_model`."""

    @abstractmethod
    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Split what this kind adds to a posterior into tensors and JSON settings."""

    @classmethod
    @abstractmethod
    def unpack(
        cls,
        tensors: Mapping[str, Tensor],
        config: Mapping[str, Any],
        problem: Problem,
        common: Mapping[str, Any],
    ) -> Self:
        """Put together what `pack` split.

        Args:
            tensors: The tensors.
            config: The settings.
            problem: The model it belongs to, and how to read its batches.
            common: What every posterior has, by the name of its argument.

        Returns:
            The posterior.
        """

    def covariance_terms(
        self,
        blocks: Sequence[LayerBlock],
        precisions: Tensor | None = None,
        label: Callable[[str], Hashable] = lambda _: "all",
    ) -> list[CovarianceTerm]:
        """Take the covariance of the linearised model's outputs apart, if it has one.

        Args:
            blocks: The blocks of its layers.
            precisions: Prior precisions for unit noise, (P,); its own if left out.
            label: From an operator's name to the sum its term joins.

        Raises:
            StructureError: If this kind predicts by draws.
        """
        raise StructureError(f"a {self.method} posterior is not linearised.")

    @property
    def floats(self) -> int:
        """How many floats it holds."""
        return sum(tensor.numel() for tensor in self.pack()[0].values())

    @property
    def stochastic(self) -> bool:
        """Whether its draws differ."""
        return True

    @property
    def samples(self) -> int:
        """With how many draws it predicts: as many as it was calibrated with."""
        chosen = self.calibration
        return chosen.samples if isinstance(chosen, SampleCalibration) else SAMPLES

    def require(self, model: nn.Module) -> None:
        """Refuse a model that it does not belong to."""
        require_fingerprint(model, self.fingerprint)

    def point_model(self, model: nn.Module) -> nn.Module:
        """The point estimate: the network whose parameters a draw changes."""
        return model

    def with_temperature(self, temperature: float) -> Self:
        """Return the same posterior with another temperature on its logits."""
        return replace(self, temperature=temperature)

    def settings(self) -> dict[str, Any]:
        """List what was chosen on held-out data, as a record notes it."""
        return {"temperature": self.temperature}

    def summary(self) -> dict[str, Any]:
        """List its size and how held-out data chose it, as JSON takes it."""
        return {
            "weights": self.subset.size,
            "fraction": self.subset.fraction,
            "floats": self.floats,
            "temperature": self.temperature,
            "tuning": None if self.calibration is None else asdict(self.calibration),
        }

    def record_config(self) -> dict[str, Any]:
        """List what identifies it, as the config of a record notes it."""
        return {
            "method": self.method,
            "temperature": self.temperature,
            "fingerprint": self.fingerprint,
        }

    def precision_curve(self) -> dict[str, Any] | None:
        """List the validation NLL over the grid of precisions, if it has some."""
        return None

    def headline(self) -> str:
        """Name in a few words the number that matters most beside the temperature."""
        return f"{self.subset.size:,} weights"

    def describe(self) -> str:
        """Say in a sentence or two what it is, for the card of its folder."""
        return f"{self!r}."

    def card(self) -> str:
        """Write the README of its folder."""
        return f"""---
library_name: smidgen
tags: [bayesian, {self.method}, uncertainty]
---
# A posterior over {self.subset.size:,} weights

{self.describe()}

```python
import smidgen

posterior = smidgen.load("this-folder", model)  # checks the base model's weights
predictive = smidgen.predict(posterior, model, batch)
```

SHA-256 of the base model's weights: `{self.fingerprint}`
"""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        shared = ("subset", "likelihood", "num_data", "fingerprint", "temperature")
        names = (*shared, "calibration")
        if any(getattr(self, name) != getattr(other, name) for name in names):
            return False
        (tensors, settings), (others, theirs) = self.pack(), other.pack()
        return (
            settings == theirs
            and tensors.keys() == others.keys()
            and all(torch.equal(value, others[key]) for key, value in tensors.items())
        )

    __hash__ = None  # type: ignore[assignment]


def require_positive(name: str, value: float) -> None:
    """Refuse a number that is not above zero, or not finite.

    Args:
        name: The argument.
        value: Its value.

    Raises:
        ArgumentError: If it is neither.
    """
    if not 0 < value < float("inf"):
        raise ArgumentError(f"{name} must be > 0 and finite, got {value}.")
