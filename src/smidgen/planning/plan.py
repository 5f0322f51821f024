"""Plan: what a posterior would cost, before any work, and what would fit instead.

Bytes and passes come from shapes alone, so that a model's skeleton on meta tensors will do.
Time needs weights: one batch of the chosen subset is timed, and the rest follows from how
many multiplications there are.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from smidgen.curvature.dry_run import ActivationTrace, dry_run
from smidgen.curvature.operators import STRUCTURES
from smidgen.curvature.taps import tapped
from smidgen.errors import ArgumentError, DataError, StructureError
from smidgen.outputs.likelihood import Categorical, Gaussian, Likelihood
from smidgen.outputs.problem import Problem, SettledProblem, as_problem
from smidgen.posterior.candidates import LAST_LAYER, Candidate, sparse_name
from smidgen.posterior.cost import Cost, Setting, candidates, cost
from smidgen.posterior.cost_swag import swag_candidates, swag_cost, touched_maps
from smidgen.runtime.memory import available_bytes, format_bytes
from smidgen.runtime.text_table import format_table
from smidgen.types import Batch
from smidgen.weights.affine import require_coverage
from smidgen.weights.blocks import find_blocks
from smidgen.weights.subset import Subset, Whole

_TRIALS = (
    "Time is that of {:,} steps of SGD. Where validation data choose the rate, each that "
    "is tried takes its own steps besides."
)
# Backward passes of the batch that is timed; of more classes the rest follows from these.
_TIMED_COLUMNS = 4
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
        each = self.cost
        return max(each.fit_peak_bytes, each.tune_peak_bytes, each.predict_peak_bytes)


@dataclass(frozen=True)
class Plan:
    """The chosen posterior and its alternatives; print it.

    Args:
        model: The model's class.
        batch: The shape of the batches.
        examples: How many training examples the time is for.
        available_bytes: Memory that can be had, or None if nobody says.
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
        """Write it down as plain values."""
        return asdict(self)

    def table(self) -> list[tuple[str, ...]]:
        """Headings and cells: the choice, and the alternatives that fit."""
        shown = [row for row in self.rows if row.fits or row.chosen]
        timed = self.chosen.seconds is not None
        headings = (*_HEADINGS, "passes", *(["time of fit"] if timed else []))
        return [headings, *(_cells(row, timed) for row in shown)]

    def remarks(self) -> list[str]:
        """What is to be said below the table."""
        lines = ["Peaks of fit, tune and predict come on top of the model."]
        if not self.chosen.fits:
            lines.append(self._objection())
        left = [row for row in self.rows if not row.fits and not row.chosen]
        if left:
            names = (
                f"{row.subset} {row.structure} ({format_bytes(row.peak_bytes)})"
                for row in left
            )
            lines.append(f"Would not fit: {', '.join(names)}.")
        return [*lines, *self.notes]

    def _objection(self) -> str:
        peak, own = self.chosen.peak_bytes, self.chosen.cost.activation_bytes
        assert self.available_bytes is not None
        if own > self.available_bytes:
            return (
                f"The choice does not fit: activations of one batch alone take "
                f"{format_bytes(own)}. Take smaller batches."
            )
        return f"The choice does not fit: it takes {format_bytes(peak)}. Take one of the others."

    def heading(self) -> str:
        """What the table is about."""
        memory = "an unknown amount of memory"
        if self.available_bytes is not None:
            memory = f"{format_bytes(self.available_bytes)} of memory"
        timed = f"; time for {self.examples:,} examples" if self.chosen.seconds else ""
        return f"{self.model}, batches of {self.batch}, {memory} available{timed}."

    def __str__(self) -> str:
        table = format_table(self.table(), left=(0, 1, 2))
        return "\n".join([self.heading(), "", table, "", *self.remarks()])


def plan(
    model: nn.Module | Problem,
    *,
    subset: Subset | None = None,
    percent: float = 10,
    method: Literal["laplace", "swag"] = "laplace",
    structure: str = "kron",
    fisher_draws: int | None = None,
    top: int | None = None,
    rank: int = 20,
    steps: int = 2000,
    batch: Batch = None,
    batch_size: int = 16,
    max_length: int = 128,
    examples: int = 1000,
) -> Plan:
    """Say what a posterior would cost, and what could be had instead.

    Args:
        model: The model, or its `Problem`; its weights may be on the meta device.
        subset: The weights to make stochastic; left out, Sparse-KFAC's.
        percent: Percent of rows and of columns if no subset is given.
        method: Which posterior.
        structure: How the curvature is to be kept, of Laplace.
        fisher_draws: Labels that `fit.laplace` is to draw for each output.
        top: How many classes of each example `fit.tune_precision` and `predict` are to
            follow.
        rank: Deviations that SWAG keeps.
        steps: Steps that SWAG takes, to estimate the time for.
        batch: A training batch. Left out, a Hugging Face model gets one of tokens.
        batch_size: Texts in such a batch.
        max_length: Tokens of each.
        examples: Training examples to estimate the time for.

    Returns:
        The plan; print it.

    Raises:
        ArgumentError: If an argument is outside what it may be.
        StructureError: If there is no such structure.
    """
    given = as_problem(model)
    if not 0 < percent <= 100:
        raise ArgumentError(f"percent must be in (0, 100], got {percent!r}. Try 10.")
    _check_method(method, structure, fisher_draws=fisher_draws, top=top)
    _require_at_least(1, batch_size=batch_size, max_length=max_length, examples=examples)
    _require_at_least(1, steps=steps, fisher_draws=fisher_draws)
    _require_at_least(2, rank=rank, top=top)
    found = require_coverage(given.model)
    if subset is None:
        name, subset = sparse_name(percent), found.row_column_blocks(percent / 100)
    else:
        name = LAST_LAYER if subset == found.last() else "given subset"
    if batch is None:
        batch = _tokens(given.model, batch_size, max_length)
    seen, notes = _seen(given, batch, batch_size)
    likelihood = given.likelihood or _likelihood(seen.outputs or top)
    problem = given.with_likelihood(likelihood)
    setting = Setting.of(problem, fisher_draws, top)
    available = available_bytes(given.device)
    counted = _swag(given.model, name, subset, rank, seen, setting)
    if method == "laplace":
        counted = _laplace(given.model, name, subset, structure, seen, setting)
    listed = list(counted)
    rows = [_row(each, what, available) for each, what, _ in listed]
    reason = _without_time(problem, seen, rows[0])
    if reason is None:
        columns = setting.columns if method == "laplace" else 1
        rate = _rate(problem, batch, listed[0][2], seen, columns)
        count = -(-examples // seen.examples) if method == "laplace" else steps
        for index, (row, (_, _, layers)) in enumerate(zip(rows, listed, strict=True)):
            each_pass = seen.work(layers, columns) + row.cost.pass_work
            work = count * row.cost.passes * each_pass + row.cost.final_work
            rows[index] = replace(row, seconds=work / rate)
    if reason is not None:
        notes.append(reason)
    if method == "swag":
        passes = -(-steps * seen.examples // examples)
        rows = [replace(row, cost=replace(row.cost, passes=passes)) for row in rows]
        notes.append(_TRIALS.format(steps))
    name = type(given.model).__name__
    return Plan(name, _shape(seen), examples, available, tuple(rows), tuple(notes))


Counted = tuple[Candidate, Cost, set[str]]
"""A candidate, what it costs and the layers it touches."""


def _laplace(
    model: nn.Module,
    name: str,
    subset: Subset,
    structure: str,
    seen: ActivationTrace,
    setting: Setting,
) -> Iterator[Counted]:
    for each in candidates(model, name, subset, structure):
        own = find_blocks(model, each.subset)
        if each.chosen and any(block.entries is not None for block in own):
            _require_scattered(structure)
        what = cost(own, each.subset, each.structure, seen, setting)
        yield each, what, {block.layer.name for block in own}


def _swag(
    model: nn.Module,
    name: str,
    subset: Subset,
    rank: int,
    seen: ActivationTrace,
    setting: Setting,
) -> Iterator[Counted]:
    for each, spread in swag_candidates(model, name, subset, "low-rank"):
        what = swag_cost(model, each.subset, spread, rank, seen, setting)
        yield each, what, touched_maps(model, each.subset)


def _check_method(method: str, structure: str, **of_laplace: int | None) -> None:
    if structure not in STRUCTURES:
        names = ", ".join(STRUCTURES)
        raise StructureError(f"structure must be one of {names}, got {structure!r}.")
    if method not in ("laplace", "swag"):
        raise ArgumentError(f"method must be 'laplace' or 'swag', got {method!r}.")
    for argument, value in of_laplace.items():
        if method == "swag" and value is not None:
            raise ArgumentError(
                f"{argument} is for method 'laplace', got {value} with {method!r}. Leave "
                "it out."
            )


def _require_at_least(least: int, **numbers: int | None) -> None:
    for argument, number in numbers.items():
        if number is not None and number < least:
            raise ArgumentError(f"{argument} must be {least} or more, got {number}.")


def _require_scattered(structure: str) -> None:
    if not STRUCTURES[structure].scattered:
        able = " or ".join(repr(n) for n, kind in STRUCTURES.items() if kind.scattered)
        raise StructureError(
            f"structure must be {able} for a subset of single weights, got {structure!r}."
        )


def _tokens(model: nn.Module, batch_size: int, max_length: int) -> Batch:
    """A batch of random tokens for a model that reads them, else None."""
    config = getattr(model, "config", None)
    words = getattr(config, "vocab_size", None)
    if getattr(model, "main_input_name", None) != "input_ids" or not words:
        return None
    longest = getattr(config, "max_position_embeddings", None) or max_length
    shape = (batch_size, min(max_length, longest))
    generator = torch.Generator().manual_seed(0)
    return {"input_ids": torch.randint(0, words, shape, generator=generator)}


def _seen(problem: Problem, batch: Batch, size: int) -> tuple[ActivationTrace, list[str]]:
    if batch is None:
        reason = "no batch was given: pass batch=..."
    else:
        try:
            return dry_run(problem, batch), []
        except DataError as error:
            reason = str(error)
    return ActivationTrace(size, 0), [f"Activations are not counted: {reason}"]


def _likelihood(outputs: int | None) -> Likelihood:
    return Gaussian(1) if outputs == 1 else Categorical(outputs or 2)


def _row(each: Candidate, what: Cost, available: int | None) -> PlanRow:
    row = PlanRow(each.name, each.structure, what, None, True, each.chosen)
    return replace(row, fits=available is None or row.peak_bytes <= available)


def _rate(
    problem: SettledProblem,
    batch: Batch,
    layers: Collection[str],
    seen: ActivationTrace,
    columns: int,
) -> float:
    """Multiplications a second in a timed pass over one batch, the second of two."""
    seconds, columns = 0.0, min(columns, _TIMED_COLUMNS)
    found_maps = require_coverage(problem.model)
    parts = {n: Whole() for m in found_maps.layers if m.name in layers for n in m.shapes}
    chosen = find_blocks(problem.model, Subset(found_maps.universe, parts))
    with tapped(problem, chosen) as taps:
        for _ in range(2):
            started = time.perf_counter()
            trace = taps.run(batch)
            for left in reversed(range(columns)):
                found = trace.deltas(torch.ones_like(trace.outputs), more=left > 0)
            # Waits for a device that runs ahead.
            float(next(iter(found.values())).sum())
            seconds = time.perf_counter() - started
    return seen.work(layers, columns) / seconds


def _without_time(
    problem: SettledProblem, seen: ActivationTrace, row: PlanRow
) -> str | None:
    """Why no time can be given, if it cannot."""
    if any(p.is_meta for p in problem.model.parameters()):
        return "No time is given: the weights were not loaded."
    if not seen.runs:
        return "No time is given: no batch could be followed."
    if not row.fits:
        return "No time is given: the choice does not fit, so it was not tried."
    return None


def _shape(seen: ActivationTrace) -> str:
    longest = max((run.positions for run in seen.runs), default=1)
    return f"{seen.examples} × {longest}" if longest > 1 else f"{seen.examples}"


def _cells(row: PlanRow, timed: bool) -> tuple[str, ...]:
    each = row.cost
    sizes = (
        each.stored_bytes,
        each.fit_peak_bytes,
        each.tune_peak_bytes,
        each.predict_peak_bytes,
    )
    return (
        "→" if row.chosen else "",
        row.subset,
        row.structure,
        f"{each.weights:,}",
        *map(format_bytes, sizes),
        str(each.passes),
        *([_duration(row.seconds)] if timed else []),
    )


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for limit, size, unit in ((99, 1, "s"), (5_940, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds / 86_400:,.0f} days"
