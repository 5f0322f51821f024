"""How fast passes over data are: one batch is timed, if it can be."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

import torch

from smidgen.curvature.accumulate import drop_mixing_layers
from smidgen.curvature.dry_run import ActivationTrace
from smidgen.curvature.taps import tapped
from smidgen.outputs.problem import SettledProblem
from smidgen.types import Batch
from smidgen.weights.affine import require_coverage
from smidgen.weights.blocks import find_blocks
from smidgen.weights.subset import Subset, Whole

# Backward passes of the timed batch; time for more classes is extrapolated from these.
_TIMED_COLUMNS = 4


def measure_rate(
    problem: SettledProblem,
    batch: Batch,
    layers: Collection[str],
    trace: ActivationTrace,
    columns: int,
) -> tuple[float | None, str | None]:
    """Time the second of two passes over a batch, in multiplications per second; and a remark."""
    seconds, columns = 0.0, min(columns, _TIMED_COLUMNS)
    coverage = require_coverage(problem.model)
    parts = {n: Whole() for m in coverage.layers if m.name in layers for n in m.shapes}
    blocks = find_blocks(problem.model, Subset(coverage.universe, parts))
    with tapped(problem, blocks) as taps:
        mixing = drop_mixing_layers(taps, problem, batch)
        remark = _remark_mixing(mixing, len(taps.blocks))
        if not taps.blocks:
            return None, remark
        for _ in range(2):
            started = time.perf_counter()
            run = taps.run(batch)
            for remaining in reversed(range(columns)):
                deltas = run.deltas(torch.ones_like(run.outputs), more=remaining > 0)
            # A device may run ahead: reading a number waits for it.
            float(next(iter(deltas.values())).sum())
            seconds = time.perf_counter() - started
        return trace.work(taps.blocks, columns) / seconds, remark


def _remark_mixing(mixing: Mapping[str, str], others: int) -> str | None:
    if not mixing:
        return None
    if not others:
        return f"No time is given, and a Laplace fit would refuse: {next(iter(mixing.values()))}."
    return (
        f"{len(mixing)} chosen layers are counted, but a Laplace fit would leave them "
        f"deterministic, starting with {next(iter(mixing))}: they do not keep the examples of "
        "a batch apart."
    )


def explain_no_time(
    problem: SettledProblem, trace: ActivationTrace, fits: bool
) -> str | None:
    """Say why no time can be estimated, if it cannot."""
    if any(p.is_meta for p in problem.model.parameters()):
        return "No time is given: the weights were not loaded."
    if not trace.runs:
        return "No time is given: no batch could be followed."
    if not fits:
        return "No time is given: the choice does not fit, so it was not tried."
    return None
