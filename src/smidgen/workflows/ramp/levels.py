"""The posteriors of a ramping study: every percentage, with curvature and without.

Which of them are needed follows from the schemes. Those with curvature come from one pass
over the training data; those without need a single batch, to see which layers mix examples.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from torch import nn

import smidgen.fit as fit
import smidgen.select as select
from smidgen.curvature.kronecker import Approximation
from smidgen.curvature.operators import Isotropic
from smidgen.outputs.problem import Problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.types import Batch
from smidgen.weights.blocks import find_blocks, restrict_subset
from smidgen.weights.subset import Subset
from smidgen.workflows.ramp.schemes import CURVED, ISOTROPIC, WHOLE, WHOLE_ISOTROPIC, Level

# The schemes whose points are percentages of all layers.
_BY_PERCENT = {"sparse-kfac", "best-budget"}
_OF_THE_LAST_LAYER = {"last-layer", "head-isotropic"}


def find_last_layer(
    problem: Problem, first: Batch, schemes: Collection[str]
) -> Subset | None:
    """Find the last layer, if a scheme takes it by itself."""
    if _OF_THE_LAST_LAYER.isdisjoint(schemes):
        return None
    return select.last_layer(problem, [first])


def list_levels(
    model: nn.Module,
    schemes: Collection[str],
    percents: Sequence[float],
    last: Subset | None,
) -> dict[Level, Subset]:
    """List the subsets that the schemes need: percentages, and whole layers."""

    def take(percent: float) -> Subset:
        return select.sparse_kfac(model, percent=percent)

    wanted = set(schemes)
    subsets: dict[Level, Subset] = {}
    if wanted & _BY_PERCENT:
        subsets |= {Level(percent): take(percent) for percent in percents}
    whole = wanted - _BY_PERCENT - {"isotropic"}
    if last is not None and whole <= _OF_THE_LAST_LAYER:
        subsets.setdefault(WHOLE, last)
    elif whole:
        subsets.setdefault(WHOLE, take(WHOLE.percent))
    if "isotropic" in wanted:
        subsets |= {Level(percent, ISOTROPIC): take(percent) for percent in percents}
    if "head-isotropic" in wanted and last is not None:
        parts = take(WHOLE.percent).parts.items()
        body = {name: part for name, part in parts if name not in last.parts}
        if body:
            subsets.setdefault(WHOLE_ISOTROPIC, Subset(last.universe, body))
    return subsets


def fit_levels(
    problem: Problem,
    train: Iterable[Batch],
    first: Batch,
    subsets: Mapping[Level, Subset],
    *,
    approximation: Approximation,
    progress: bool,
) -> dict[Level, LaplacePosterior]:
    """Fit a posterior to each subset: to the training data, or without curvature to none."""
    by_structure: dict[str, dict[Level, Subset]] = {CURVED: {}, ISOTROPIC: {}}
    for level, subset in subsets.items():
        by_structure[level.structure][level] = subset
    posteriors: dict[Level, LaplacePosterior] = {}
    if by_structure[CURVED]:
        posteriors |= fit.laplace_many(
            problem,
            train,
            by_structure[CURVED],
            progress=progress,
            settings=fit.LaplaceSettings(approximation=approximation),
        )
    if by_structure[ISOTROPIC]:
        posteriors |= _leave_out_curvature(problem, first, by_structure[ISOTROPIC])
    return posteriors


def _leave_out_curvature(
    problem: Problem, first: Batch, subsets: Mapping[Level, Subset]
) -> dict[Level, LaplacePosterior]:
    """Make the posteriors without curvature, all after the one with the most layers."""
    most = max(subsets.values(), key=lambda subset: len(subset.parts))
    base = fit.laplace(problem, [first], most, structure=ISOTROPIC, progress=False)
    posteriors = {}
    for level, subset in subsets.items():
        found = find_blocks(problem.model, subset)
        blocks = [block for block in found if block.layer.name in base.operators]
        posteriors[level] = replace(
            base,
            subset=restrict_subset(subset, blocks),
            operators=Isotropic.of_blocks(problem, blocks),
        )
    return posteriors
