"""`LaplacePosterior`: a Gaussian over a subset of weights, centred at the trained values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from smidgen.curvature.base import Operator
from smidgen.curvature.factors.low_rank import (
    MORE_VECTORS,
    TOLD_ERROR,
    TOLERANCE,
    check_tolerance,
)
from smidgen.curvature.operators import JOINT, STRUCTURES, Isotropic
from smidgen.errors import ArgumentError, warn
from smidgen.outputs.likelihood import Gaussian
from smidgen.outputs.problem import Problem, SettledProblem
from smidgen.posterior.base import (
    Calibration,
    Config,
    Posterior,
    Sampler,
    Tensors,
    check_positive,
)
from smidgen.posterior.operator_store import pack_operators, unpack_operators
from smidgen.posterior.output_covariance import CovarianceTerm
from smidgen.runtime.guard import fingerprint, require_fingerprint
from smidgen.runtime.keeping.structure import unwrap
from smidgen.runtime.storage.offload import read_parameter
from smidgen.weights.blocks import LayerBlock, find_blocks
from smidgen.weights.subset import Subset


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class LaplacePosterior(Posterior):
    """N(trained weights, (curvature + τI)⁻¹) over a subset; all else stays fixed.

    A regression's noise scales the curvature, which was summed over `num_data` examples.

    Args:
        operators: The curvature of each affine layer, by the layer's name; or one for all.
        precision: Prior precision τ, or one for each operator by its name.
        approximation: How positions share weights: "expand" or "reduce".
        log_likelihood: That of the training data at the trained weights, if labelled.
    """

    operators: Mapping[str, Operator]
    precision: float | Mapping[str, float]
    approximation: str = "reduce"
    log_likelihood: float | None = None
    calibration: Calibration | None = field(default=None)
    method = "laplace"
    linearised = True
    packed_types = {
        "structure": str | dict[str, str],
        "approximation": Literal["expand", "reduce"],
        "precision": float | dict[str, float],
        "log_likelihood": float | None,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        prior = self.precision
        if isinstance(prior, Mapping):
            if set(prior) != set(self.operators):
                raise ArgumentError(
                    "precision must be a number, or one for each of the operators "
                    f"{', '.join(list(self.operators)[:3])}…, got {', '.join(prior)}."
                )
            prior = MappingProxyType({name: float(tau) for name, tau in prior.items()})
        else:
            prior = float(prior)
        object.__setattr__(self, "precision", prior)
        for tau in self.precisions.values():
            check_positive("precision", tau)
        object.__setattr__(self, "operators", MappingProxyType(dict(self.operators)))

    @property
    def structure(self) -> str:
        """How the curvature is kept, "kron" say; of operators of several kinds, all of them."""
        kinds = {operator.structure for operator in self.operators.values()}
        return " + ".join(kind for kind in STRUCTURES if kind in kinds)

    @property
    def variance_error(self) -> float:
        """How far off a variance of the outputs may be, relatively, by low-rank factors."""
        return max(
            operator.bound_error(self._unit_precision(name))
            for name, operator in self.operators.items()
        )

    def bound_error(self, precision: float) -> float:
        """The same under another precision, one for all operators and for unit noise."""
        return max(op.bound_error(precision) for op in self.operators.values())

    @property
    def precisions(self) -> dict[str, float]:
        """The prior precision of each operator."""
        return {name: self.precision_of(name) for name in self.operators}

    @property
    def plain_precision(self) -> float | dict[str, float]:
        """The prior precision as JSON takes it: a number, or one for each operator."""
        prior = self.precision
        return dict(prior) if isinstance(prior, Mapping) else prior

    @property
    def precision_range(self) -> str:
        """The prior precision, or the smallest and the largest, as text."""
        return format_range(self.precisions.values())

    def precision_of(self, name: str) -> float:
        """The prior precision of one operator."""
        prior = self.precision
        return prior[name] if isinstance(prior, Mapping) else prior

    def _unit_precision(self, name: str) -> float:
        """The same for unit noise, for which the curvature is kept."""
        return self.precision_of(name) * self.likelihood.scale

    def require(self, model: nn.Module) -> None:
        """Refuse a model with other weights than it was fitted to."""
        require_fingerprint(model, self.fingerprint)

    def sampler(self, model: nn.Module) -> Sampler:
        """Prepare draws of the weights: each gives the parameters it changes, by name."""
        model = unwrap(model)
        blocks = find_blocks(model, self.subset)

        def draw(generator: torch.Generator) -> dict[str, Tensor]:
            deviations = self.sample_deviations(generator)
            if JOINT in deviations:
                pieces = deviations[JOINT].split([block.size for block in blocks])
            else:
                pieces = tuple(deviations[block.layer.name] for block in blocks)
            weights: dict[str, Tensor] = {}
            for block, piece in zip(blocks, pieces, strict=True):
                for name, deviation in block.scatter(piece).items():
                    weight = weights.get(name, read_parameter(model, name))
                    # Added in the finer of the two types: a small deviation of a bf16
                    # weight should be rounded once.
                    weights[name] = (weight + deviation.to(weight.device)).to(weight.dtype)
            return weights

        return lambda generators: map(draw, generators)

    def covariance_terms(
        self,
        blocks: Sequence[LayerBlock],
        precisions: Tensor | None = None,
        label: Callable[[str], Hashable] = lambda _: "all",
        tolerance: float | None = None,
    ) -> list[CovarianceTerm]:
        """List the terms of the linearised outputs' covariance, one for each operator."""
        if precisions is None:
            # Of what was compressed within the same tolerance, rounding is not told.
            self._warn_of_error(TOLD_ERROR if tolerance is None else 1.01 * tolerance)
        layers = tuple(block.layer.name for block in blocks)
        terms = []
        for name, operator in self.operators.items():
            grid = precisions
            if grid is None:
                precision = self._unit_precision(name)
                grid = torch.tensor([precision], dtype=torch.float64)
                if tolerance is not None:
                    operator = operator.shortcut(precision, tolerance)
            spanned = layers if operator.joint else (name,)
            terms.append(CovarianceTerm(label(name), spanned, operator, grid))
        return terms

    def compress(self, tolerance: float = TOLERANCE) -> LaplacePosterior:
        """Keep only what variances at its own precision need: a small posterior to save.

        Calibrate first: at a much smaller precision the error would be larger. Only factors
        ("kron") are cut; operators of other structures stay as they are.

        Args:
            tolerance: By how much, relatively, a variance of the outputs may be off, in
                (0, 1).

        Returns:
            The same posterior with fewer eigenvectors; `variance_error` bounds the error. It
            is zero, and nothing changed, if there are no factors.

        Raises:
            ArgumentError: If the tolerance is not in (0, 1).
        """
        check_tolerance(tolerance, none=False)
        smaller = {
            name: operator.compress(self._unit_precision(name), tolerance)
            for name, operator in self.operators.items()
        }
        posterior = replace(self, operators=smaller)
        posterior._warn_of_error(tolerance)
        return posterior

    def _warn_of_error(self, most: float) -> None:
        error = self.variance_error
        if error > most:
            warn(
                f"variances may be off by up to {error:.1%} at precision "
                f"{self.precision_range}: factors were cut to fewer eigenvectors than that "
                f"needs. {MORE_VECTORS}"
            )

    def __or__(self, other: LaplacePosterior) -> LaplacePosterior:
        """Join two posteriors of one model over different layers, which stay independent."""
        if not isinstance(other, LaplacePosterior):
            return NotImplemented
        return join_posteriors(self, other)

    def sample_deviations(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw deviations (D,) from the trained weights, by the operator's name."""
        # Curvature H is kept for unit noise, so their covariance is σ²(H + τσ²)⁻¹.
        scale, deviations = self.likelihood.scale, {}
        for name, operator in self.operators.items():
            normals = torch.randn(operator.size, dtype=torch.float64, generator=generator)
            precision = torch.tensor([self.precision_of(name) * scale])
            deviations[name] = operator.draw(normals, precision, scale)
        return deviations

    @property
    def floats(self) -> int:
        """Floats of the operators; of factors that is Σ n² + m² over the layers."""
        return sum(operator.floats for operator in self.operators.values())

    def with_precision(self, precision: float | Mapping[str, float]) -> LaplacePosterior:
        """Return the same curvature under another prior."""
        return replace(self, precision=precision)

    def settings(self) -> dict[str, Any]:
        """List what was chosen on held-out data, as a record notes it."""
        low, high = min(self.precisions.values()), max(self.precisions.values())
        return {
            **({"precision": low} if low == high else {"precision_range": [low, high]}),
            **super().settings(),
            "precision_at_edge": bool(self.calibration and self.calibration.at_edge),
        }

    def summary(self) -> dict[str, Any]:
        """List its size and how held-out data chose it, as JSON takes it."""
        return {**super().summary(), "precision": self.plain_precision}

    def record_config(self) -> dict[str, Any]:
        """List what identifies it, as the config of a record notes it."""
        return {
            **super().record_config(),
            "structure": self.structure,
            "approximation": self.approximation,
            "precision": self.plain_precision,
        }

    def headline(self) -> str:
        """Name the prior precision."""
        return f"precision {self.precision_range}"

    def precision_curve(self) -> dict[str, Any] | None:
        """List the validation NLL over the grid of precisions, for a figure."""
        chosen, curve = self.precision, self.calibration
        if curve is None:
            return None
        return {
            "precision": list(curve.precisions),
            "nll": list(curve.nll),
            "nll_with_temperature": list(curve.joint_nll),
            # Several precisions are not one point of the curve.
            "chosen_precision": chosen if isinstance(chosen, float) else None,
            "chosen_precisions": self.precisions,
            "chosen_temperature": self.temperature,
            "map_nll": curve.map_nll,
            "temperature_nll": curve.map_scaled_nll,
        }

    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Split operators and prior into tensors and settings."""
        structures = {name: op.structure for name, op in self.operators.items()}
        kinds = set(structures.values())
        return pack_operators(self.operators), {
            "structure": kinds.pop() if len(kinds) == 1 else structures,
            "approximation": self.approximation,
            "precision": self.plain_precision,
            "log_likelihood": self.log_likelihood,
        }

    @classmethod
    def unpack(
        cls, tensors: Tensors, config: Config, problem: Problem, common: Config
    ) -> Self:
        """Put together what `pack` split, checking every shape and number."""
        operators = unpack_operators(
            tensors,
            config["structure"],
            problem,
            find_blocks(problem.model, common["subset"]),
        )
        names = ("precision", "approximation", "log_likelihood")
        return cls(operators=operators, **{name: config[name] for name in names}, **common)

    def describe(self) -> str:
        """Describe it, for the card of its folder."""
        return f"""Laplace ({self.structure}, {self.approximation}) over {self.subset.size:,} of
{self.subset.total:,} weights of affine layers ({self.subset.fraction:.3%}), fitted to
{self.num_data:,} examples. Prior precision {self.precision_range}, temperature
{self.temperature:.4g}; {self.floats:,} floats in the factors."""

    def __reduce__(self) -> tuple[object, ...]:
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        values.update(operators=dict(self.operators), precision=self.plain_precision)
        return partial(LaplacePosterior, **values), ()

    def __repr__(self) -> str:
        scale = f"temperature {self.temperature:.3g}"
        if isinstance(self.likelihood, Gaussian):
            scale = f"noise variance {self.likelihood.noise:.3g}"
        count = len(self.operators)
        return (
            f"LaplacePosterior({self.structure}, {self.subset.size:,} weights in "
            f"{count} operator{'s' * (count > 1)}, {self.floats:,} floats, "
            f"precision {self.precision_range}, {scale})"
        )


def format_range(values: Iterable[float]) -> str:
    """Write the smallest and the largest of some numbers, once if they are the same."""
    distinct = sorted(set(values))
    ends = distinct if len(distinct) < 3 else (distinct[0], distinct[-1])
    return " to ".join(f"{end:.4g}" for end in ends)


def make_isotropic(
    problem: SettledProblem, subset: Subset, blocks: Sequence[LayerBlock], precision: float
) -> LaplacePosterior:
    """Make the posterior without curvature, which no data are needed for."""
    return LaplacePosterior(
        subset=subset,
        likelihood=problem.likelihood,
        operators=Isotropic.of_blocks(problem, blocks),
        precision=precision,
        fingerprint=fingerprint(problem.model),
        num_data=0,
    )


def join_posteriors(left: LaplacePosterior, right: LaplacePosterior) -> LaplacePosterior:
    """Join two posteriors of one model over different layers, which stay independent."""
    shared = left.operators.keys() & right.operators.keys()
    faults = {
        "be of one model": left.fingerprint != right.fingerprint,
        f"have no layer in common, as {', '.join(sorted(shared)[:3])}": bool(shared),
        "not be of structure 'full'": JOINT in {*left.operators, *right.operators},
        "have the same outputs": (left.likelihood.kind, left.likelihood.outputs)
        != (right.likelihood.kind, right.likelihood.outputs),
        "have the same temperature": left.temperature != right.temperature,
    }
    for wanted, wrong in faults.items():
        if wrong:
            raise ArgumentError(
                f"posteriors must {wanted} to be joined, got {left!r} and {right!r}. Fit them "
                "to different layers of one model, join them, then calibrate."
            )
    # What was fitted to data knows the noise, and how positions were treated.
    fitted = left if left.num_data >= right.num_data else right
    precisions = {**left.precisions, **right.precisions}
    common = set(precisions.values())
    subset = left.subset | right.subset
    if subset.origin is not None:
        # Which of the two has which curvature, for a name that says so.
        kinds = {**subset.origin.settings, "structures": [left.structure, right.structure]}
        subset = replace(subset, origin=replace(subset.origin, settings=kinds))
    return replace(
        fitted,
        subset=subset,
        operators={**left.operators, **right.operators},
        precision=common.pop() if len(common) == 1 else precisions,
        calibration=None,
        choice=None,
    )
