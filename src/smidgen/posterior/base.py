"""`Posterior`: a distribution over some weights of a model, whatever its shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from smidgen.errors import ArgumentError, StructureError, is_number
from smidgen.outputs.likelihood import Likelihood
from smidgen.outputs.links import Link
from smidgen.outputs.problem import Problem
from smidgen.posterior.choice import Choice
from smidgen.posterior.output_covariance import CovarianceTerm
from smidgen.runtime.guard import fingerprint
from smidgen.runtime.keeping.structure import unwrap
from smidgen.runtime.showing.html import ShownInNotebook
from smidgen.weights.blocks import LayerBlock
from smidgen.weights.subset import Subset, check_subset

SAMPLES = 32
"""How many draws of the weights a prediction takes by default."""

Tensors = Mapping[str, Tensor]
Config = Mapping[str, Any]

Sampler = Callable[[Sequence[torch.Generator]], Iterator[dict[str, Tensor]]]
"""Draws once from each generator: the parameters that the draw changes, by name."""


@dataclass(frozen=True)
class Calibration:
    """How prior precision and temperature were chosen: validation NLL over the whole grid.

    A *scale* goes with each precision: the temperature of a classifier, the noise
    variance of a regression. `map_` numbers are those of the point estimate.
    """

    precisions: tuple[float, ...]
    nll: tuple[float, ...]  # of each precision, at `fixed_scale`
    joint_nll: tuple[float, ...]  # of each precision, at its best scale
    scales: tuple[float, ...]  # those best scales
    map_nll: float
    map_scale: float  # the best one: temperature scaling
    map_scaled_nll: float
    examples: int
    at_edge: bool  # whether a chosen precision is the first or last of the grid
    fixed_scale: float = 1.0
    chosen_nll: float | None = None
    scope: str = "scalar"  # one precision, or one for each group or layer
    link: Link | None = None  # the one it was chosen under, where that is not the usual one


@dataclass(frozen=True)
class SampleCalibration:
    """How the temperature, or a regression's noise, was chosen for prediction by draws.

    `map_` numbers are those of the point estimate, all others of the draws' mixture.
    """

    nll: float  # at temperature 1, or with the noise that suits the point estimate
    chosen_nll: float  # at the chosen temperature or noise
    map_nll: float  # as `nll`
    map_scale: float  # its own best temperature or noise
    map_scaled_nll: float  # and the NLL there
    examples: int
    samples: int


def describe_calibration(
    calibration: Calibration | SampleCalibration | None,
) -> dict[str, Any] | None:
    """List a calibration as JSON takes it; a link only where it is not the usual one."""
    if calibration is None:
        return None
    values = asdict(calibration)
    return {n: v for n, v in values.items() if n != "link" or v is not None}


@dataclass(frozen=True, eq=False, kw_only=True)
class Posterior(ShownInNotebook, ABC):
    """A distribution over a subset of a model's weights; all others stay fixed.

    A new kind implements how it is drawn (`sampler`), which models it belongs to
    (`require`) and how it is stored (`pack`, `unpack`), and takes one row in
    `smidgen.posterior.registry`.

    Args:
        subset: The stochastic weights.
        likelihood: What the model's outputs mean.
        num_data: How many training examples it was fitted to; 0 if not counted.
        fingerprint: Hash of the weights of the model it belongs to.
        temperature: Divides the mean of the logits, and not how they vary.
        calibration: How `calibrate` chose the temperature and more, if it did.
        choice: What `bayesify` tried beside it, if that made it.
    """

    subset: Subset
    likelihood: Likelihood
    num_data: int
    fingerprint: str
    temperature: float = 1.0
    calibration: Calibration | SampleCalibration | None = field(default=None, repr=False)
    choice: Choice | None = field(default=None, repr=False)
    method: ClassVar[str]
    """The name of its fit, its row in the registry and what a folder calls it."""
    linearised: ClassVar[bool] = False
    """Whether it predicts through the linearised model, or else by draws."""
    packed_types: ClassVar[Mapping[str, Any]] = {}
    """The settings that `pack` writes, and the types of their JSON values."""

    def __post_init__(self) -> None:
        check_subset(self.subset)
        object.__setattr__(self, "temperature", float(self.temperature))
        check_positive("temperature", self.temperature)

    @abstractmethod
    def require(self, model: nn.Module) -> None:
        """Refuse a model that it does not belong to."""

    @abstractmethod
    def sampler(self, model: nn.Module) -> Sampler:
        """Prepare draws: each gives new values to some parameters of `point_model`."""

    @abstractmethod
    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Split what this kind adds to a posterior into tensors and JSON settings."""

    @classmethod
    @abstractmethod
    def unpack(
        cls, tensors: Tensors, config: Config, problem: Problem, common: Config
    ) -> Self:
        """Put together what `pack` split; `common` are the arguments all posteriors take."""

    def covariance_terms(
        self,
        blocks: Sequence[LayerBlock],
        precisions: Tensor | None = None,
        label: Callable[[str], Hashable] = lambda _: "all",
        tolerance: float | None = None,
    ) -> list[CovarianceTerm]:
        """List the terms of the linearised outputs' covariance, one for each operator."""
        # Precisions, (P,), are for unit noise, by default the posterior's own; `label` maps
        # an operator's name to the sum that its term joins. With its own precisions variances
        # may be off by a relative `tolerance`, where that saves work.
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
        """How many draws it predicts with: as many as it was calibrated with."""
        how = self.calibration
        return how.samples if isinstance(how, SampleCalibration) else SAMPLES

    @property
    def link(self) -> Link:
        """How the linearised model's outputs become probabilities: as at calibration."""
        how = self.calibration
        return (how.link if isinstance(how, Calibration) else None) or Link()

    def point_model(self, model: nn.Module) -> nn.Module:
        """The point estimate: the network whose parameters a draw changes."""
        return model

    def for_copy(self, model: nn.Module, copy: nn.Module) -> Self:
        """Return the same posterior for a copy of its model in another floating type.

        Args:
            model: The model it belongs to.
            copy: A copy of it, as `.half()`, `.bfloat16()`, `.float()` or one after another
                make it. Every weight must be that of the model, rounded to float32,
                float16 or bfloat16 or not at all: bit for bit, so that no tolerance is needed.

        Returns:
            The posterior around the copy's weights; its covariance stays as it was fitted.

        Raises:
            ArgumentError: If the model is another, or the copy has other weights.
        """
        self.require(model)
        _require_rounded(unwrap(model), unwrap(copy))
        return replace(self, fingerprint=fingerprint(copy))

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
            "tuning": describe_calibration(self.calibration),
            **({} if self.choice is None else {"choice": self.choice.to_json()}),
        }

    def record_config(self) -> dict[str, Any]:
        """List what identifies it, as the config of a record notes it."""
        return {
            "method": self.method,
            "temperature": self.temperature,
            "fingerprint": self.fingerprint,
        }

    def precision_curve(self) -> dict[str, Any] | None:
        """List the validation NLL over the grid of precisions, if there is one."""
        return None

    def headline(self) -> str:
        """Name the number that matters most beside the temperature."""
        return f"{self.subset.size:,} weights"

    def describe(self) -> str:
        """Describe it in a sentence or two, for the card of its folder."""
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
        names = [shared.name for shared in fields(Posterior)]
        if any(getattr(self, name) != getattr(other, name) for name in names):
            return False
        (tensors, settings), (others, theirs) = self.pack(), other.pack()
        return (
            settings == theirs
            and tensors.keys() == others.keys()
            and all(torch.equal(value, others[key]) for key, value in tensors.items())
        )

    __hash__ = None  # type: ignore[assignment]


def _require_rounded(model: nn.Module, copy: nn.Module) -> None:
    """Refuse a copy whose weights are not the model's, as a cast rounds them."""
    ours, theirs = model.state_dict(), copy.state_dict()
    wrong = next(iter(ours.keys() ^ theirs.keys()), None)
    for name in () if wrong else ours:
        if not _is_rounded(ours[name], theirs[name]):
            wrong = name
            break
    if wrong is not None:
        raise ArgumentError(
            "copy must have the weights of the model in another floating type, got others in "
            f"{wrong!r}. Make it with copy.deepcopy(model).half() or .bfloat16()."
        )


def _is_rounded(value: Any, other: Any) -> bool:
    if not isinstance(value, Tensor) or not isinstance(other, Tensor):
        return value is other or bool(value == other)
    value, other = value.detach().cpu(), other.detach().cpu()
    if not value.is_floating_point() or value.shape != other.shape:
        return torch.equal(value, other)
    types = (value.dtype, torch.float32, torch.float16, torch.bfloat16)
    return any(torch.equal(value.to(each).to(other.dtype), other) for each in types)


def check_positive(name: str, value: float) -> None:
    """Refuse an argument that is not a finite number above zero."""
    if not is_number(value) or not 0 < value < float("inf"):
        raise ArgumentError(f"{name} must be > 0 and finite, got {value!r}. Try 1.")
