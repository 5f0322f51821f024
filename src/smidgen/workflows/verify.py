"""Verify: does smidgen see a user's model as it is? A slow, exact second opinion.

Taps see a layer's weights through the module that runs it. If the model uses them in another
way too, taps miss part of the Jacobian. So, for a few weights of every layer, autograd computes
the Jacobian J of the outputs again, without taps, on an fp64 copy. It is compared in four ways:

    curvature   the diagonal of Σ Jᵀ Λ J, Λ the Hessian of −log p, with structure "diag"
    factors     G ⊗ A by its definition, one output at a time, with that of "kron"
    variance    J (G ⊗ A + τI)⁻¹ Jᵀ, inverted densely, with the covariance of "kron"
    samples     the covariance of weights drawn from "kron" with that inverse, as the
                largest z-score of its entries

The first three are relative errors, ‖ours − exact‖ / ‖exact‖. A fifth column shows how far the
Kronecker product is from the exact curvature: that is an approximation, not an error. But it may
lose a layer altogether: the keys of attention, say, whose δ sum to zero over the positions, so
that "reduce" leaves them their prior. Such a layer does not agree, it is lost.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from math import isnan, nan
from sys import float_info
from typing import Any

import torch
from torch import Tensor, nn

from smidgen.curvature.factors.operator import Kronecker
from smidgen.errors import ArgumentError, SmidgenWarning, is_whole
from smidgen.fit import LaplaceSettings, laplace
from smidgen.outputs.batches import as_batches
from smidgen.outputs.other_uses import find_other_uses
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.posterior.output_covariance import output_moments
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.showing.html import Printed, PrintedTable, ShownAsTable
from smidgen.runtime.storage.quantised import is_quantised
from smidgen.types import Batch
from smidgen.weights.affine import require_coverage
from smidgen.weights.blocks import find_blocks
from smidgen.weights.subset import Part, Subset
from smidgen.workflows.exact_factors import exact_factors
from smidgen.workflows.exact_jacobian import (
    ExactJacobians,
    exact_hessians,
    exact_jacobians,
)

_DRAWS = 2000
# Thousands of entries are compared; by chance alone one in a thousand runs reaches five.
_MOST_Z = 6.0
# By the bytes of the model's dtype: this is rounding of its activations, not an error.
_TOLERANCES = {8: 1e-6, 4: 5e-3, 2: 1e-1}
# Below this fraction of the largest curvature, a layer is lost in fp32 rounding.
_FLOOR = 1e-12
# A Kronecker product below this fraction of a layer's exact curvature has lost it.
_VANISHED = 1e-3
_HEADINGS = "layer", "curvature", "factors", "variance", "samples", "kron's gap", "verdict"
_UNSEEN = (
    "the model uses their weights in a way that smidgen does not see. Leave them out of the "
    "subset."
)
_WRONG_SUMS = (
    "their Jacobians are right, but what 'kron' makes of them is not. Use structure='ekfac' or "
    "'diag', and report this table as a bug of smidgen."
)


@dataclass(frozen=True)
class LayerCheck:
    """How far one layer is from the exact computation."""

    name: str
    curvature: float  # relative error
    factors: float  # relative error of the Kronecker product
    variance: float  # relative error of its part of the outputs' variance
    samples: float  # largest z-score of the covariance of drawn weights
    approximation: float  # relative distance of the Kronecker product from the curvature
    remark: str  # why it was skipped or cannot be compared, if so
    agrees: bool
    lost: bool = False  # whether the Kronecker product, though right, keeps no curvature

    @property
    def verdict(self) -> str:
        """Judge the layer in a word or two."""
        if isnan(self.curvature):
            return self.remark
        verdict = "agrees" if self.agrees else "DISAGREES"
        if self.agrees and self.lost:
            verdict = "LOST BY KRON"
        return f"{verdict} ({self.remark})" if self.remark else verdict


@dataclass(frozen=True)
class Verification(ShownAsTable):
    """The checks of all layers, which print as a table.

    Args:
        checks: One check per layer.
        tolerance: The largest relative error that passes.
        examples: How many rows of outputs were compared.
    """

    checks: tuple[LayerCheck, ...]
    tolerance: float
    examples: int

    @property
    def agrees(self) -> bool:
        """Whether no layer disagrees: smidgen sees them all as they are."""
        return all(check.agrees for check in self.checks)

    @property
    def lost(self) -> tuple[str, ...]:
        """Layers whose curvature "kron" loses, though they are seen as they are."""
        return tuple(c.name for c in self.checks if c.agrees and c.lost)

    def to_dict(self) -> dict[str, Any]:
        """List plain values for JSON, None where nothing could be compared."""
        checks = [
            {
                key: None if isinstance(value, float) and isnan(value) else value
                for key, value in (asdict(check) | {"verdict": check.verdict}).items()
            }
            for check in self.checks
        ]
        told = {"agrees": self.agrees, "lost": list(self.lost)}
        return {**asdict(self), "checks": checks, **told}

    def summary(self) -> str:
        """Summarise the checks in a sentence."""
        count, compared = len(self.checks), f"on {self.examples} outputs"
        wrong = [check for check in self.checks if not check.agrees]
        if wrong:
            # A layer is used behind the taps' back, unless what they saw was summed wrongly.
            summed = all(check.curvature <= self.tolerance for check in wrong)
            return (
                f"{len(wrong)} of {count} layers disagree, starting with {wrong[0].name}: "
                + (_WRONG_SUMS if summed else _UNSEEN)
            )
        within = f"(errors below {self.tolerance:g}, |z| below {_MOST_Z:g})"
        if not self.lost:
            return (
                f"All {count} layers agree with the exact computation {compared} {within}."
            )
        return (
            f"{count - len(self.lost)} of {count} layers agree with the exact computation "
            f"{compared} {within}. The others are seen as they are, but 'kron' keeps none of "
            f"their curvature, starting with {self.lost[0]}: they keep the prior. Use "
            "structure='ekfac', or approximation='expand'."
        )

    def printed_parts(self) -> list[Printed]:
        """List the table of checks and the summary."""
        table = PrintedTable([_HEADINGS, *map(_cells, self.checks)], left=(0, 6))
        return [table, "", self.summary()]


# Inside a caller's inference mode no copy of a weight could be differentiated.
@torch.inference_mode(False)
def verify(
    model: nn.Module | Problem,
    batches: Iterable[Batch],
    *,
    rows: int = 6,
    columns: int = 6,
    precision: float = 1.0,
    tolerance: float | None = None,
    seed: int = 0,
) -> Verification:
    """Compare curvature, variances and samples with a slow, exact computation.

    Args:
        model: The trained model, or its `Problem`. It is not changed.
        batches: A few small batches: every output of every example is back-propagated
            separately through the whole model.
        rows: How many rows of each layer to compare, chosen at random.
        columns: How many columns of each layer to compare, chosen at random.
        precision: The prior precision of the posterior that is compared.
        tolerance: The largest relative error that passes; by default it follows the
            model's dtype.
        seed: Seed of the random choice and of the samples.

    Returns:
        The checks, layer by layer. Print it to see a table.

    Raises:
        ArgumentError: If rows or columns is below 1.
    """
    if not is_whole(rows) or not is_whole(columns) or rows < 1 or columns < 1:
        raise ArgumentError(
            f"rows and columns must be 1 or more, got {rows} and {columns}. Try 6."
        )
    unsettled = as_problem(model)
    batches = as_batches(batches)
    generator = torch.Generator().manual_seed(seed)
    subset = _choose_few(unsettled.model, rows, columns, generator)
    with preserve_random_state(unsettled.model):
        # A loader may draw its order from torch's own generator.
        batches = list(batches)
        problem, _, _ = unsettled.settle(batches)
    kron, diagonal = _fit_both(problem, batches, subset)
    kron = kron.with_precision(precision)
    blocks = find_blocks(problem.model, subset)
    held = {b.layer.name: (b.layer.modules, b.layer.shapes) for b in blocks}
    exact = exact_jacobians(problem, batches, blocks)
    factors = exact_factors(
        problem,
        batches,
        find_blocks(problem.model, kron.subset),
        kron.approximation,
        lambda outputs: exact_hessians(problem, outputs),
    )
    comparison = _Comparison(
        exact,
        factors,
        diagonal,
        kron,
        _output_variances(problem, batches, kron),
        _tolerance(problem.model) if tolerance is None else tolerance,
        _FLOOR * max(float(exact.curvature(name).norm()) for name in exact.jacobians),
        _draw_weights(kron, generator),
        find_other_uses(problem, batches[0], held),
    )
    checks = tuple(comparison.check(name) for name in exact.jacobians)
    return Verification(checks, comparison.tolerance, len(exact.hessians))


@dataclass(frozen=True, eq=False)
class _Comparison:
    """Both sides of the comparison, and how close they must be."""

    exact: ExactJacobians
    factors: Mapping[str, Tensor]
    diagonal: LaplacePosterior
    kron: LaplacePosterior
    variances: Mapping[str, Tensor]
    tolerance: float
    least: float
    draws: Mapping[str, Tensor]
    unseen: Collection[str]

    def check(self, name: str) -> LayerCheck:
        """Compare one layer."""
        if name in self.unseen:
            remark = (
                "DISAGREES (its weights are used outside its call too: left out of fits)"
            )
            return LayerCheck(name, nan, nan, nan, nan, nan, remark, False)
        if name not in self.kron.operators:
            remark = "skipped: it mixes examples, or never runs"
            return LayerCheck(name, nan, nan, nan, nan, nan, remark, True)
        factored, covariance = self._factored(name)
        curvature = self.exact.curvature(name)
        least, size = self.least, float(curvature.norm())
        vanished = max(least, _VANISHED * size)
        errors = (
            _error(self.diagonal.operators[name].values, curvature.diagonal(), least),
            # Where it vanishes by definition, what is left of either is rounding.
            _error(factored, self.factors[name], vanished),
            _error(self.variances[name], self.exact.variance(name, covariance), least),
        )
        score = covariance_score(self.draws[name], covariance * self.kron.likelihood.scale)
        return LayerCheck(
            name,
            *errors,
            score,
            _error(factored, curvature, least),
            "" if size > least else "hardly affects any output",
            all(error <= self.tolerance for error in errors) and score <= _MOST_Z,
            size > least and float(factored.norm()) <= vanished,
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


def _draw_weights(
    posterior: LaplacePosterior, generator: torch.Generator
) -> dict[str, Tensor]:
    """Draw the weights many times, as predicting by samples does: (S, D) by layer."""
    draws = [posterior.sample_deviations(generator) for _ in range(_DRAWS)]
    return {
        name: torch.stack([draw[name] for draw in draws]).double().cpu()
        for name in posterior.operators
    }


def covariance_score(draws: Tensor, covariance: Tensor) -> float:
    """Return the largest absolute z-score of the covariance of centred draws, (S, D)."""
    # For normal draws, entry ij has the variance (Σ_ii Σ_jj + Σ_ij²) / S.
    empirical = draws.T @ draws / len(draws)
    variances = covariance.diagonal()
    variance = torch.outer(variances, variances) + covariance.square()
    return float(((empirical - covariance) / (variance / len(draws)).sqrt()).abs().max())


def _fit_both(
    problem: SettledProblem, batches: Iterable[Batch], subset: Subset
) -> tuple[LaplacePosterior, LaplacePosterior]:
    """Fit Kronecker factors and the diagonal, to be compared."""
    # Drawn labels, as many classes have by default, would differ by chance.
    settings = LaplaceSettings(fisher_draws="exact")
    with warnings.catch_warnings():
        # Layers that mix examples or never run get a row that says so.
        warnings.simplefilter("ignore", SmidgenWarning)
        kron, diagonal = (
            laplace(
                problem,
                batches,
                subset,
                structure=structure,
                settings=settings,
                progress=False,
            )
            for structure in ("kron", "diag")
        )
    return kron, diagonal


def _choose_few(
    model: nn.Module, rows: int, columns: int, generator: torch.Generator
) -> Subset:
    """Choose a few random rows and columns of every layer."""
    coverage = require_coverage(model)
    parts: dict[str, Part] = {}
    for layer in coverage.layers:
        indices = (
            torch.randperm(total, generator=generator)[:count].sort().values
            for total, count in ((layer.outputs, rows), (layer.inputs, columns))
        )
        parts.update(layer.parts(*indices))
    return Subset(coverage.universe, parts)


def _output_variances(
    problem: SettledProblem, batches: list[Batch], posterior: LaplacePosterior
) -> dict[str, Tensor]:
    """Split the outputs' covariance by layer, as a prediction computes it: (R, C, C)."""
    blocks = find_blocks(problem.model, posterior.subset)
    terms = posterior.covariance_terms(blocks, label=lambda name: name)
    eye = torch.eye(posterior.likelihood.outputs, dtype=torch.float64)

    def each_output(outputs: Tensor) -> Tensor:
        return eye.to(outputs)[:, None].expand(-1, len(outputs), -1)

    moments = list(output_moments(problem, batches, blocks, terms, each_output))
    return {
        name: torch.cat([m.covariance[name][0, m.kept] for m in moments]).double()
        for name in posterior.operators
    }


def _error(ours: Tensor, exact: Tensor, least: float) -> float:
    """‖ours − exact‖ / ‖exact‖, or zero if both are within rounding of zero."""
    ours, size = ours.double().cpu(), float(exact.norm())
    if max(size, float(ours.norm())) <= least:
        return 0.0
    return float((ours - exact).norm()) / max(size, least, float_info.min)


def _tolerance(model: nn.Module) -> float:
    sizes = [p.itemsize for p in model.parameters() if not is_quantised(p)]
    return _TOLERANCES[max(2, min(sizes))]


def _cells(check: LayerCheck) -> tuple[str, ...]:
    if isnan(check.curvature):
        return (check.name, "", "", "", "", "", check.verdict)
    return (
        check.name,
        f"{check.curvature:.1e}",
        f"{check.factors:.1e}",
        f"{check.variance:.1e}",
        f"z {check.samples:.1f}",
        f"{check.approximation:.0%}",
        check.verdict,
    )
