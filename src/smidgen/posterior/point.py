"""`PointPosterior`: the trained weights alone, with a temperature or a noise of their own.

Temperature scaling as a posterior: what it is beside is predicted, compared, saved and
loaded in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import Any, Self

from torch import Tensor, nn

from smidgen.outputs.likelihood import Gaussian
from smidgen.outputs.problem import Problem
from smidgen.posterior.base import Config, Posterior, SampleCalibration, Sampler, Tensors
from smidgen.runtime.guard import require_fingerprint
from smidgen.types import Shape
from smidgen.weights.no_weights import NoWeights
from smidgen.weights.subset import Subset


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class PointPosterior(Posterior):
    """The trained weights with certainty; held-out data choose but a temperature, or a noise.

    Args:
        universe: Names and shapes of the parameters of which none is stochastic.
    """

    universe: Mapping[str, Shape]
    calibration: SampleCalibration | None = None
    subset: Subset = field(init=False)
    method = "point"
    packed_types = {"universe": dict[str, Shape]}

    def __post_init__(self) -> None:
        subset = NoWeights(self.universe)
        object.__setattr__(self, "subset", subset)
        object.__setattr__(self, "universe", MappingProxyType(dict(subset.universe)))
        super().__post_init__()

    @property
    def floats(self) -> int:
        """Nothing is kept beside the model but one number."""
        return 0

    @property
    def stochastic(self) -> bool:
        """Never: there is nothing to draw."""
        return False

    @property
    def samples(self) -> int:
        """It predicts without draws."""
        return 0

    def require(self, model: nn.Module) -> None:
        """Refuse a model with other weights than those it was calibrated with."""
        require_fingerprint(model, self.fingerprint)

    def sampler(self, model: nn.Module) -> Sampler:
        """Prepare draws, which change nothing."""
        return lambda generators: ({} for _ in generators)

    def headline(self) -> str:
        """Name what was chosen: a temperature, or a noise."""
        if isinstance(self.likelihood, Gaussian):
            return f"noise variance {self.likelihood.noise:.4g}"
        return "no stochastic weights"

    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """There are no tensors, and one setting."""
        return {}, {"universe": {name: list(s) for name, s in self.universe.items()}}

    @classmethod
    def unpack(
        cls, tensors: Tensors, config: Config, problem: Problem, common: Config
    ) -> Self:
        """Put together what `pack` split."""
        return cls(universe=config["universe"], **common)

    def describe(self) -> str:
        """Describe it, for the card of its folder."""
        scale = f"Temperature {self.temperature:.4g}"
        if isinstance(self.likelihood, Gaussian):
            scale = f"Noise variance {self.likelihood.noise:.4g}"
        return f"""The model's own weights, none of which is stochastic: temperature scaling.
{scale}, chosen on held-out data."""

    def __reduce__(self) -> tuple[object, ...]:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        del values["subset"]
        values["universe"] = dict(self.universe)
        return partial(PointPosterior, **values), ()

    def __repr__(self) -> str:
        scale = f"temperature {self.temperature:.3g}"
        if isinstance(self.likelihood, Gaussian):
            scale = f"noise variance {self.likelihood.noise:.3g}"
        return f"PointPosterior({scale})"
