"""What posteriors cost, whatever the method, and the refusal of one that is too large.

`laplace` and `swag` beside it count the cost of one method each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

from smidgen.curvature.dry_run import ActivationTrace
from smidgen.curvature.output_layers import guess_output_layers
from smidgen.errors import ResourceError
from smidgen.outputs.links import Link
from smidgen.outputs.problem import Problem, SettledProblem
from smidgen.runtime.memory import LIMIT, available_bytes, format_bytes
from smidgen.types import Batch
from smidgen.weights.blocks import find_blocks
from smidgen.weights.subset import Subset

LAST_LAYER = "last layer"
SLACK = 0.4
"""Fraction of the activations that malloc gives back late."""
# Sizes of Sparse-KFAC to compare with.
_PERCENTS = (1, 3, 10, 30, 100)


@dataclass(frozen=True)
class Setting:
    """What costs depend on besides the subset."""

    itemsize: int  # bytes of a number in the working type
    columns: int  # backward passes for each batch of a fit
    directions: int  # backward passes for each batch of a prediction
    rank: int  # deviations that SWAG keeps
    most_vectors: int | None = None  # of a Kronecker factor; by default of wide sides only
    body: Subset | None = None  # other layers, which join Laplace's without curvature

    @classmethod
    def of(
        cls,
        problem: SettledProblem,
        draws: int | Literal["exact"] | None = None,
        top: int | Literal["all"] | None = None,
        rank: int = 20,
    ) -> Setting:
        """Derive from a problem what a fit and `predict` would do."""
        likelihood = problem.likelihood
        link = likelihood.settle_link(Link(top=top))
        return cls(
            problem.working_type.itemsize,
            likelihood.settle_draws(draws) or likelihood.root_count,
            likelihood.direction_count(link.name, link.followed),
            rank,
        )


@dataclass(frozen=True)
class Cost:
    """What one posterior costs. Peaks are the most bytes taken at once, beyond the model."""

    weights: int
    stored_bytes: int  # of the tensors that are saved, indices included
    fit_peak_bytes: int
    tune_peak_bytes: int  # of a calibration, over 41 precisions for Laplace
    predict_peak_bytes: int
    activation_bytes: int  # the part of the peaks that grows with the batch
    passes: int  # over the training data
    pass_work: int  # multiplications for each batch of a pass, beyond the model's own
    final_work: int  # multiplications after the passes


@dataclass(frozen=True)
class CostModel:
    """How the cost of a method is counted, in each form its posterior can have."""

    cost: Callable[[nn.Module, Subset, str, ActivationTrace, Setting], Cost]
    forms: tuple[str, ...]  # structures or covariances, the default first
    option: str  # the argument of the fit that chooses the form
    label: str  # of a form in a table, with braces for its name
    scattered: tuple[str, ...]  # the forms that can hold single weights


@dataclass(frozen=True, eq=False)
class Candidate:
    """A subset and a form of its posterior, by the name it is shown under."""

    name: str
    form: str
    subset: Subset
    chosen: bool = False


def list_candidates(
    costs: CostModel,
    problem: Problem,
    name: str,
    subset: Subset,
    form: str,
    batch: Batch = None,
) -> Iterator[Candidate]:
    """List a choice, then its form on other subsets, then its subset in other forms."""
    yield Candidate(name, form, subset, True)
    for other, weights in _compared_subsets(problem, batch).items():
        if other != name:
            yield Candidate(other, form, weights)
    forms = costs.forms
    if forms != costs.scattered and any(
        block.entries is not None for block in find_blocks(problem.model, subset)
    ):
        forms = costs.scattered
    for other in forms:
        if other != form:
            yield Candidate(name, other, subset)


def name_sparse_kfac(percent: float) -> str:
    """Name a Sparse-KFAC percentage in a table."""
    return f"sparse-kfac {percent:g} %"


def _compared_subsets(problem: Problem, batch: Batch) -> dict[str, Subset]:
    """List Sparse-KFAC's subsets of several sizes, and the last layer if there is one."""
    coverage = guess_output_layers(problem, batch)
    subsets = {
        name_sparse_kfac(percent): coverage.row_column_blocks(percent / 100)
        for percent in _PERCENTS
    }
    last = coverage.last()
    return subsets if last is None else {**subsets, LAST_LAYER: last}


def refuse_too_large(
    costs: CostModel,
    problem: SettledProblem,
    subset: Subset,
    form: str,
    setting: Setting,
    examples: int = 1,
) -> None:
    """Refuse a fit that needs more memory than there is, and say what would fit."""
    available = available_bytes(problem.device)
    # Activations are left out: they are the model's, and it would take a pass to know them.
    trace = ActivationTrace(examples, 0)

    def find_peak(candidate: Candidate) -> int:
        weights, kind = candidate.subset, candidate.form
        return costs.cost(problem.model, weights, kind, trace, setting).fit_peak_bytes

    candidates = list_candidates(costs, problem, "this subset", subset, form)
    needed = find_peak(next(candidates))
    if available is None or needed <= available:
        return
    peaks = [(find_peak(candidate), candidate) for candidate in candidates]
    advice = [
        f"{candidate.name} with {costs.option}={candidate.form!r} ({format_bytes(peak)})"
        for peak, candidate in sorted(peaks, key=lambda pair: -pair[0])
        if peak <= available
    ]
    raise ResourceError(
        f"{costs.option} {form!r} on {subset.size:,} weights needs {format_bytes(needed)} "
        f"of memory, and {format_bytes(available)} are available. "
        + (f"What fits: {'; '.join(advice[:4])}." if advice else "Nothing would fit.")
        + f" smidgen.plan shows all; {LIMIT}=BYTES overrides what is available."
    )
