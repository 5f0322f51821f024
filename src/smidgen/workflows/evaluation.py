"""One posterior beside its baselines on test data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from smidgen.errors import ArgumentError
from smidgen.outputs.likelihood import Categorical
from smidgen.outputs.problem import Problem, as_problem
from smidgen.posterior.base import Posterior
from smidgen.report.names import label_method
from smidgen.runtime.record import BASELINES, Record
from smidgen.types import Batch
from smidgen.weights.affine import coverage
from smidgen.weights.blocks import find_blocks
from smidgen.weights.subset import Subset, Whole
from smidgen.workflows.comparison import (
    compare,
    in_order,
    point_methods,
    posterior_method,
    seen_elsewhere,
)
from smidgen.workflows.posterior_notes import subset_summary


def evaluate_posterior(
    posterior: Posterior,
    model: nn.Module | Problem,
    test: Iterable[Batch],
    *,
    shifted: Mapping[str, Iterable[Batch]] | None = None,
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    progress: bool = True,
) -> Record:
    """Score a posterior, the point estimate and temperature scaling on test data.

    The temperature is the one that `calibrate` fitted on its
    validation data; the test data choose nothing.

    Args:
        posterior: A tuned posterior of a classifier.
        model: The model, or its `Problem`.
        test: Labelled test batches, read once.
        shifted: Shifted data by name, with or without labels; read once, one at a time.
        name: What to call the posterior, as beside another of its kind; by default told
            from its subset and its structure.
        config: What to note in the record beside the posterior's own settings.
        progress: Draw progress bars; in a log, a line a minute.

    Returns:
        The record of the comparison.

    Raises:
        ArgumentError: If the posterior is not of a classifier, or the name is a baseline's.
    """
    if not isinstance(posterior.likelihood, Categorical):
        raise ArgumentError(
            f"posterior must be of a classifier, got a {posterior.likelihood.kind} "
            "likelihood. Score its predictive with smidgen.evaluate instead."
        )
    if name is not None and (not name.strip() or name in BASELINES):
        raise ArgumentError(
            f"name must tell the posterior from {' and '.join(BASELINES)}, got {name!r}. "
            "Give another, or leave it out."
        )
    problem = as_problem(model).with_likelihood(posterior.likelihood)
    tested = in_order(problem, test)
    tuning = posterior.calibration
    methods, targets = point_methods(
        problem,
        tested,
        temperature=tuning.map_scale if tuning else None,
        progress=progress,
    )
    ours = name or _method_name(posterior, problem.model)
    methods.append(posterior_method(ours, posterior, problem, tested, progress=progress))
    methods = seen_elsewhere(
        methods, {ours: posterior}, problem, shifted or {}, progress=progress
    )
    results = compare(methods, targets)
    results["subset"] = subset_summary(problem, posterior)
    results["data"] = {"train": posterior.num_data, "test": len(targets)}
    if tuning is not None:
        results["data"]["validation"] = tuning.examples
    curve = posterior.precision_curve()
    if curve is not None:
        results["precision_curve"] = curve
    noted = {**(config or {}), **posterior.record_config()}
    return Record("evaluate", noted, results)


def _method_name(posterior: Posterior, model: nn.Module) -> str:
    """What a posterior is called, told from the shape of its subset."""
    structure = posterior.record_config().get("structure")
    if structure is None:
        return posterior.method
    name = _subset_name(posterior.subset, model)
    # What its kind of subset has unless told otherwise goes without saying.
    if structure == ("diag" if name == "single-weights" else "kron"):
        return name
    label = "Rows × columns" if name == "sparse-kfac" else label_method(name)
    return f"{label}, {structure}"


def _subset_name(subset: Subset, model: nn.Module) -> str:
    if subset == coverage(model).last():
        return "last-layer"
    found = find_blocks(model, subset)
    if any(block.entries is not None for block in found):
        return "single-weights"
    whole = all(isinstance(part, Whole) for part in subset.parts.values())
    everything = len(found) == len(coverage(model).layers)
    return "modules" if whole and not everything else "sparse-kfac"
