"""Plan: what a posterior would cost, before any work, and what would fit instead.

Bytes and passes come from shapes alone, so that a model's skeleton on meta tensors will do.
Time needs weights: one batch of the chosen subset is timed, and the rest follows from how
many multiplications there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import nn

from smidgen.curvature.dry_run import ActivationTrace, dry_run
from smidgen.curvature.operators import STRUCTURES
from smidgen.curvature.output_layers import guess_output_layers
from smidgen.errors import (
    ArgumentError,
    DataError,
    StructureError,
    fill_settings,
    is_number,
    is_whole,
)
from smidgen.outputs.likelihood import Categorical, Gaussian
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.planning.settings import PlanSettings
from smidgen.planning.timing import explain_no_time, measure_rate
from smidgen.posterior.cost.laplace import LAPLACE_COSTS
from smidgen.posterior.cost.model import (
    LAST_LAYER,
    Candidate,
    Cost,
    CostModel,
    Setting,
    list_candidates,
    name_sparse_kfac,
)
from smidgen.posterior.cost.swag import touched_layers
from smidgen.posterior.registry import POSTERIORS
from smidgen.runtime.memory import available_bytes, format_bytes
from smidgen.runtime.showing.html import Printed, PrintedTable, ShownAsTable
from smidgen.types import Batch
from smidgen.weights.affine import require_coverage
from smidgen.weights.blocks import find_blocks, find_body
from smidgen.weights.subset import Subset

_METHODS: Mapping[str, CostModel] = {
    method: kind.costs for method, kind in POSTERIORS.items() if kind.costs is not None
}
_HEADINGS = ("", "subset", "structure", "weights", "stored", "fit", "tune", "predict")


@dataclass(frozen=True)
class PlanRow:
    """One posterior: what it is called, what it costs, and whether that fits.

    `seconds` is the estimated time of the fit, or None without weights.
    """

    subset: str
    structure: str
    cost: Cost
    seconds: float | None
    fits: bool
    chosen: bool

    @property
    def peak_bytes(self) -> int:
        """The highest of all peaks."""
        cost = self.cost
        return max(cost.fit_peak_bytes, cost.tune_peak_bytes, cost.predict_peak_bytes)


@dataclass(frozen=True)
class Plan(ShownAsTable):
    """The chosen posterior and its alternatives; print it.

    Args:
        model: The model's class.
        batch: The shape of the batches.
        examples: How many training examples the time is for.
        available_bytes: Memory that is free, or None if unknown.
        rows: The choice first, then alternatives.
        notes: What the numbers leave out, and why.
    """

    model: str
    batch: str
    examples: int
    available_bytes: int | None
    rows: tuple[PlanRow, ...]
    notes: tuple[str, ...]

    @property
    def chosen(self) -> PlanRow:
        """The row that was asked for."""
        return self.rows[0]

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values."""
        return asdict(self)

    def table(self) -> list[tuple[str, ...]]:
        """Headings and cells: the choice, and the alternatives that fit."""
        shown = [row for row in self.rows if row.fits or row.chosen]
        timed = self.chosen.seconds is not None
        headings = (*_HEADINGS, "passes", *(["time of fit"] if timed else []))
        return [headings, *(_cells(row, timed) for row in shown)]

    def remarks(self) -> list[str]:
        """List the remarks below the table."""
        lines = ["Peaks of fit, tune and predict come on top of the model."]
        if not self.chosen.fits:
            activations = self.chosen.cost.activation_bytes
            objection = f"it takes {format_bytes(self.chosen.peak_bytes)}. Choose another"
            if activations > (self.available_bytes or 0):
                objection = (
                    f"activations of one batch alone take {format_bytes(activations)}. Use "
                    "smaller batches"
                )
            lines.append(f"The choice does not fit: {objection}.")
        too_large = [
            f"{row.subset} {row.structure} ({format_bytes(row.peak_bytes)})"
            for row in self.rows
            if not row.fits and not row.chosen
        ]
        if too_large:
            lines.append(f"Would not fit: {', '.join(too_large)}.")
        return [*lines, *self.notes]

    def heading(self) -> str:
        """Say what the table is about."""
        memory = "an unknown amount of memory"
        if self.available_bytes is not None:
            memory = f"{format_bytes(self.available_bytes)} of memory"
        timed = f"; time for {self.examples:,} examples" if self.chosen.seconds else ""
        return f"{self.model}, batches of {self.batch}, {memory} available{timed}."

    def printed_parts(self) -> list[Printed]:
        """List the heading, the table and the remarks."""
        table = PrintedTable(self.table(), left=(0, 1, 2))
        return [self.heading(), "", table, "", *self.remarks()]


def plan(
    model: nn.Module | Problem,
    *,
    subset: Subset | None = None,
    percent: float = 10,
    method: str = "laplace",
    structure: str | None = None,
    batch: Batch = None,
    examples: int = 1000,
    settings: PlanSettings | None = None,
) -> Plan:
    """Estimate what a posterior would cost, and what would fit instead.

    Args:
        model: The model, or its `Problem`; its weights may be on the meta device.
        subset: The weights to make stochastic; Sparse-KFAC's by default.
        percent: Percent of rows and of columns if no subset is given.
        method: Which posterior: "laplace" or "swag".
        structure: How Laplace stores the curvature ("kron" by default), or the covariance
            of SWAG ("low-rank" by default).
        batch: A training batch. By default a Hugging Face model gets one of tokens.
        examples: Training examples to estimate the time for.
        settings: Further numbers.

    Returns:
        The plan; print it.
    """
    settings = fill_settings(settings, PlanSettings)
    structure = _check_arguments(percent, method, structure, examples)
    settings.check(method)
    costs, problem = _METHODS[method], as_problem(model)
    coverage = require_coverage(problem.model)
    batch = _make_tokens(problem.model, settings) if batch is None else batch
    if subset is None:
        name, subset = name_sparse_kfac(percent), coverage.row_column_blocks(percent / 100)
    else:
        last = guess_output_layers(problem, batch).last()
        name = LAST_LAYER if subset == last else "given subset"
    if method == "laplace":
        _check_structure(problem.model, subset, structure)
    trace, notes = _trace(problem, batch, settings.batch_size)
    settled = _settle(problem, batch, trace, settings.top)
    setting = Setting.of(settled, settings.fisher_draws, settings.top, settings.rank)
    available = available_bytes(problem.device)
    candidates = list(list_candidates(costs, problem, name, subset, structure, batch))
    body = _find_body(problem.model, subset, structure) if settings.isotropic_body else None
    rows = []
    for candidate in candidates:
        joined = replace(setting, body=body if candidate.subset is subset else None)
        row = _count(costs, problem.model, candidate, trace, joined)
        rows.append(replace(row, fits=available is None or row.peak_bytes <= available))
    reason = explain_no_time(settled, trace, rows[0].fits)
    if reason is None:
        columns = setting.columns if method == "laplace" else 1
        batches = -(-examples // trace.examples) if method == "laplace" else settings.steps
        layers = [
            set(touched_layers(problem.model, candidate.subset)) for candidate in candidates
        ]
        rate, reason = measure_rate(settled, batch, layers[0], trace, columns)
        for index, row in enumerate(rows):
            pass_work = trace.work(layers[index], columns) + row.cost.pass_work
            work = batches * row.cost.passes * pass_work + row.cost.final_work
            rows[index] = replace(row, seconds=work / rate if rate else None)
    notes += filter(None, [reason])
    if method == "swag":
        passes = -(-settings.steps * trace.examples // examples)
        rows = [replace(row, cost=replace(row.cost, passes=passes)) for row in rows]
        notes.append(
            f"Time is for {settings.steps:,} steps of SGD. Where validation data choose the "
            "learning rate, every rate that is tried takes further steps."
        )
    name = type(problem.model).__name__
    return Plan(name, _shape(trace), examples, available, tuple(rows), tuple(notes))


def _count(
    costs: CostModel,
    model: nn.Module,
    candidate: Candidate,
    trace: ActivationTrace,
    setting: Setting,
) -> PlanRow:
    """Count what a candidate costs; whether that fits is told by its peaks."""
    name, form = candidate.name, candidate.form
    if setting.body is not None and STRUCTURES[form].joint:
        setting = replace(setting, body=None)
    name += " | isotropic body" if setting.body is not None else ""
    cost = costs.cost(model, candidate.subset, form, trace, setting)
    return PlanRow(name, costs.label.format(form), cost, None, True, candidate.chosen)


def _find_body(model: nn.Module, subset: Subset, structure: str) -> Subset:
    if STRUCTURES[structure].joint:
        raise StructureError(
            f"structure must keep layers apart for an isotropic body, got {structure!r}, one "
            "matrix over all of them. Leave it out for 'kron'."
        )
    return find_body(model, subset)


def _check_arguments(
    percent: float, method: str, structure: str | None, examples: int
) -> str:
    """Check the arguments; return the structure."""
    if not is_number(percent) or not 0 < percent <= 100:
        raise ArgumentError(f"percent must be in (0, 100], got {percent!r}. Try 10.")
    if not isinstance(method, str) or method not in _METHODS:
        names = " or ".join(map(repr, _METHODS))
        raise ArgumentError(
            f"method must be {names}, got {method!r}. Leave it out for 'laplace'."
        )
    if not is_whole(examples) or examples < 1:
        raise ArgumentError(f"examples must be 1 or more, got {examples!r}. Try 1000.")
    forms = _METHODS[method].forms
    if structure is not None and structure not in forms:
        names = ", ".join(forms)
        raise StructureError(f"structure must be one of {names}, got {structure!r}.")
    return structure or forms[0]


def _check_structure(model: nn.Module, subset: Subset, structure: str) -> None:
    able = LAPLACE_COSTS.scattered
    scattered = any(block.entries is not None for block in find_blocks(model, subset))
    if scattered and structure not in able:
        raise StructureError(
            f"structure must be {' or '.join(map(repr, able))} for a subset of single "
            f"weights, got {structure!r}."
        )


def _make_tokens(model: nn.Module, settings: PlanSettings) -> Batch:
    """Make a batch of random tokens for a model that reads them, else None."""
    config = getattr(model, "config", None)
    words = getattr(config, "vocab_size", None)
    if getattr(model, "main_input_name", None) != "input_ids" or not words:
        return None
    longest = getattr(config, "max_position_embeddings", None) or settings.max_length
    shape = (settings.batch_size, min(settings.max_length, longest))
    generator = torch.Generator().manual_seed(0)
    return {"input_ids": torch.randint(0, words, shape, generator=generator)}


def _trace(problem: Problem, batch: Batch, size: int) -> tuple[ActivationTrace, list[str]]:
    if batch is None:
        reason = "no batch was given: pass batch=..."
    else:
        try:
            return dry_run(problem, batch), []
        except DataError as error:
            reason = str(error)
    return ActivationTrace(size, 0), [f"Activations are not counted: {reason}"]


def _settle(
    problem: Problem, batch: Batch, trace: ActivationTrace, top: int | str | None
) -> SettledProblem:
    """Settle what the outputs mean as a fit of this batch would, or guess it."""
    if batch is not None and trace.outputs and problem.targets(batch) is not None:
        tokens = trace.output_numbers // trace.examples // trace.outputs
        slots = (tokens,) if tokens > 1 else ()
        shape = (trace.examples, *slots, trace.outputs)
        return problem.settle_by(batch, torch.empty(shape, device="meta"))
    outputs = trace.outputs or (top if isinstance(top, int) else 2)
    guess = Gaussian(1) if outputs == 1 else Categorical(outputs)
    return problem.with_likelihood(problem.likelihood or guess)


def _shape(trace: ActivationTrace) -> str:
    longest = max((run.positions for run in trace.runs), default=1)
    return f"{trace.examples} × {longest}" if longest > 1 else f"{trace.examples}"


def _cells(row: PlanRow, timed: bool) -> tuple[str, ...]:
    cost = row.cost
    peaks = (cost.fit_peak_bytes, cost.tune_peak_bytes, cost.predict_peak_bytes)
    return (
        "→" if row.chosen else "",
        row.subset,
        row.structure,
        f"{cost.weights:,}",
        *map(format_bytes, (cost.stored_bytes, *peaks)),
        str(cost.passes),
        *([_duration(row.seconds)] if timed else []),
    )


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for limit, size, unit in ((99, 1, "s"), (5_940, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds / 86_400:,.0f} days"
