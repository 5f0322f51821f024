"""Verify: does smidgen see a user's model as it is? A slow, exact second opinion.

Taps see a layer's weights through the module that runs it. A model that also uses them in
another way has a larger Jacobian than taps can tell. So for a few weights of every layer the
Jacobian J of the outputs is computed once more by autograd in the weights themselves, on a
copy in fp64, one output at a time, without taps, and compared in three ways:

    curvature   the diagonal of Σ Jᵀ Λ J, Λ the Hessian of −log p, with structure "diag"
    variance    J (G ⊗ A + τI)⁻¹ Jᵀ, inverted densely, with the covariance of "kron"
    samples     the covariance of weights drawn from "kron" with that inverse, as the
                largest z-score of its entries

The first two are relative errors, ‖ours − exact‖ / ‖exact‖. Beside them stands how far the
Kronecker product is from the exact curvature: that is an approximation and no mistake.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import isnan, nan
from sys import float_info
from typing import Any

import torch
from torch import Tensor, nn

from smidgen.curvature.operators import Kronecker
from smidgen.errors import ArgumentError, SmidgenWarning
from smidgen.fit import laplace
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.output_covariance import output_moments
from smidgen.runtime.guard import preserve_model
from smidgen.runtime.text_table import format_table
from smidgen.types import Batch
from smidgen.weights.affine import require_coverage
from smidgen.weights.blocks import find_blocks
from smidgen.weights.subset import Part, Subset
from smidgen.workflows.exact_jacobian import Exact, exact_jacobians

_DRAWS = 2000
# Some thousand entries are compared; chance alone reaches five once in a thousand runs.
_MOST_Z = 6.0
# By bytes of the model's type: rounding of activations, not of anything of ours.
_TOLERANCES = {8: 1e-6, 4: 5e-3, 2: 1e-1}
# A layer below this share of the largest curvature cannot be told from rounding in fp32.
_FLOOR = 1e-12


@dataclass(frozen=True)
class LayerCheck:
    """How far one layer is from the exact computation.

    Args:
        name: The layer.
        curvature: Relative error of the curvature.
        variance: Relative error of its share of the outputs' variance.
        samples: Largest z-score of the covariance of drawn weights.
        approximation: Relative distance of the Kronecker product from the exact curvature.
        remark: Why it was left out or cannot be compared, if so.
        agrees: Whether all are within the tolerance.
    """

    name: str
    curvature: float
    variance: float
    samples: float
    approximation: float
    remark: str
    agrees: bool


@dataclass(frozen=True)
class Verification:
    """The checks of all layers; print it.

    Args:
        checks: A check for each layer.
        tolerance: The relative error that is let pass.
        examples: How many rows of outputs were compared.
    """

    checks: tuple[LayerCheck, ...]
    tolerance: float
    examples: int

    @property
    def agrees(self) -> bool:
        """Whether every layer does."""
        return all(check.agrees for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Write it down as plain values; None where nothing could be compared."""
        checks = [
            {
                key: None if isinstance(value, float) and isnan(value) else value
                for key, value in asdict(check).items()
            }
            for check in self.checks
        ]
        return {**asdict(self), "checks": checks, "agrees": self.agrees}

    def table(self) -> list[tuple[str, ...]]:
        """Headings and cells."""
        headings = ("map", "curvature", "variance", "samples", "kron's gap", "verdict")
        return [headings, *(_cells(check) for check in self.checks)]

    def summary(self) -> str:
        """One sentence."""
        wrong = [check.name for check in self.checks if not check.agrees]
        if wrong:
            return (
                f"{len(wrong)} of {len(self.checks)} layers disagree, {wrong[0]} first: the "
                "model uses their weights in a way that smidgen does not see. Leave them "
                "out of the subset."
            )
        return (
            f"All {len(self.checks)} layers agree with the exact computation on "
            f"{self.examples} outputs (errors below {self.tolerance:g}, |z| below "
            f"{_MOST_Z:g})."
        )

    def __str__(self) -> str:
        return "\n".join([format_table(self.table(), left=(0, 5)), "", self.summary()])


def verify(
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    *,
    rows: int = 6,
    columns: int = 6,
    precision: float = 1.0,
    tolerance: float | None = None,
    generator: torch.Generator | None = None,
) -> Verification:
    """Compare curvature, variances and samples with a slow exact computation.

    Args:
        model: The trained model, or its `Problem`. It is left as it was.
        batches: A few small batches: every output of every example is back-propagated
            by itself through the whole model.
        rows: Rows of every layer to compare, chosen at random.
        columns: Columns of every layer, likewise.
        precision: The prior precision of the posterior that is compared.
        tolerance: The relative error to let pass; by the model's type if left out.
        generator: Source of the choice and of the samples; a fixed seed if left out.

    Returns:
        The checks, layer by layer; print it.

    Raises:
        ArgumentError: If an argument is outside what it may be.
    """
    if rows < 1 or columns < 1:
        raise ArgumentError(
            f"rows and columns must be 1 or more, got {rows} and {columns}. Try 6."
        )
    given, batches = as_problem(model), list(batches)
    source = generator or torch.Generator().manual_seed(0)
    subset = _few(given.model, rows, columns, source)
    with preserve_model(given.model):
        problem, _, _ = given.settle(batches)
    with warnings.catch_warnings():
        # Layers that mix examples or never run get a row that says so.
        warnings.simplefilter("ignore", SmidgenWarning)
        kron, diagonal = (
            laplace(problem, batches, subset, structure=each, progress=False)
            for each in ("kron", "diag")
        )
    kron = kron.with_precision(precision)
    exact = exact_jacobians(problem, batches, find_blocks(given.model, subset))
    compare = _Comparison(
        exact,
        diagonal,
        kron,
        _own_variances(problem, batches, kron),
        _tolerance(given.model) if tolerance is None else tolerance,
        _FLOOR * max(float(exact.curvature(name).norm()) for name in exact.jacobians),
        _draws(kron, source),
    )
    checks = tuple(compare.check(name) for name in exact.jacobians)
    return Verification(checks, compare.tolerance, len(exact.hessians))


@dataclass(frozen=True, eq=False)
class _Comparison:
    """Both sides, and how near they must be."""

    exact: Exact
    diagonal: LaplacePosterior
    kron: LaplacePosterior
    variances: Mapping[str, Tensor]
    tolerance: float
    least: float
    draws: Mapping[str, Tensor]

    def check(self, name: str) -> LayerCheck:
        """Compare one layer."""
        if name not in self.kron.operators:
            why = "left out: its examples cannot be told apart"
            return LayerCheck(name, nan, nan, nan, nan, why, True)
        factored, covariance = self._factored(name)
        curvature = self.exact.curvature(name)
        least = self.least
        errors = (
            _error(self.diagonal.operators[name].values, curvature.diagonal(), least),
            _error(self.variances[name], self.exact.variance(name, covariance), least),
        )
        score = covariance_score(self.draws[name], covariance * self.kron.likelihood.scale)
        return LayerCheck(
            name,
            *errors,
            score,
            _error(factored, curvature, least),
            "" if float(curvature.norm()) > least else "next to no output depends on it",
            all(each <= self.tolerance for each in errors) and score <= _MOST_Z,
        )

    def _factored(self, name: str) -> tuple[Tensor, Tensor]:
        """G ⊗ A, and the inverse of it plus τI, for unit noise."""
        operator = self.kron.operators[name]
        assert isinstance(operator, Kronecker)
        rows, columns = operator.row_vectors.double(), operator.column_vectors.double()
        factored = torch.kron(
            rows * operator.row_values.double() @ rows.T,
            columns * operator.column_values.double() @ columns.T,
        ).cpu()
        prior = self.kron.precision_of(name) * self.kron.likelihood.scale
        eye = torch.eye(len(factored), dtype=torch.float64)
        return factored, torch.linalg.inv(factored + prior * eye)


def _draws(posterior: LaplacePosterior, source: torch.Generator) -> dict[str, Tensor]:
    """Many draws of the weights, (S, D) by layer, as a prediction by samples has them."""
    found = [posterior.sample_deviations(source) for _ in range(_DRAWS)]
    return {
        name: torch.stack([each[name] for each in found]).double().cpu()
        for name in posterior.operators
    }


def covariance_score(draws: Tensor, covariance: Tensor) -> float:
    """Judge draws by the covariance they should have.

    Args:
        draws: Draws with mean zero, (S, D).
        covariance: The covariance they are said to have, (D, D).

    Returns:
        The largest z-score, in size, of an entry of the draws' own covariance. That of
        normal draws has the variance (Σ_ii Σ_jj + Σ_ij²) / S.
    """
    found = draws.T @ draws / len(draws)
    variances = covariance.diagonal()
    spread = torch.outer(variances, variances) + covariance.square()
    return float(((found - covariance) / (spread / len(draws)).sqrt()).abs().max())


def _few(model: nn.Module, rows: int, columns: int, source: torch.Generator) -> Subset:
    """A few random rows and columns of every layer."""
    found = require_coverage(model)
    parts: dict[str, Part] = {}
    for each in found.layers:
        drawn = (
            torch.randperm(total, generator=source)[:count].sort().values
            for total, count in ((each.outputs, rows), (each.inputs, columns))
        )
        parts.update(each.parts(*drawn))
    return Subset(found.universe, parts)


def _own_variances(
    problem: SettledProblem, batches: list[Batch], posterior: LaplacePosterior
) -> dict[str, Tensor]:
    """Each layer's share of the outputs' covariance as a prediction has it, (R, C, C)."""
    chosen = find_blocks(problem.model, posterior.subset)
    shares = posterior.covariance_terms(chosen, label=lambda name: name)
    eye = torch.eye(posterior.likelihood.outputs, dtype=torch.float64)

    def outputs_alone(outputs: Tensor) -> Tensor:
        return eye.to(outputs)[:, None].expand(-1, len(outputs), -1)

    found = output_moments(problem, batches, chosen, shares, outputs_alone)
    return {
        name: torch.cat([each.covariance[name][0, each.kept] for each in found]).double()
        for name in posterior.operators
    }


def _error(ours: Tensor, exact: Tensor, least: float) -> float:
    """‖ours − exact‖ / ‖exact‖, or zero if both are below what rounding leaves."""
    found, size = ours.double().cpu(), float(exact.norm())
    if max(size, float(found.norm())) <= least:
        return 0.0
    return float((found - exact).norm()) / max(size, least, float_info.min)


def _tolerance(model: nn.Module) -> float:
    sizes = [p.itemsize for p in model.parameters() if p.is_floating_point()]
    return _TOLERANCES[max(2, min(sizes))]


def _cells(check: LayerCheck) -> tuple[str, ...]:
    verdict = "agrees" if check.agrees else "DISAGREES"
    numbers = (check.curvature, check.variance, check.samples, check.approximation)
    if check.remark:
        verdict = f"{verdict} ({check.remark})"
    if isnan(check.curvature):
        return (check.name, "", "", "", "", check.remark)
    return (
        check.name,
        f"{numbers[0]:.1e}",
        f"{numbers[1]:.1e}",
        f"z {numbers[2]:.1f}",
        f"{numbers[3]:.0%}",
        verdict,
    )
