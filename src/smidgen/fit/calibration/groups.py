"""Which operators share a prior precision: all of them, those of a group, or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from smidgen.curvature.operators import JOINT
from smidgen.errors import ArgumentError
from smidgen.outputs.problem import Problem
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.weights.affine import coverage

Scope = Literal["auto", "scalar", "group", "layer"]


def group_labels(
    scope: Scope, posterior: LaplacePosterior, problem: Problem
) -> dict[str, str]:
    """Name the precision that each operator has.

    Args:
        scope: "scalar", "group" (attention, MLPs and the output layer), "layer", or "auto":
            by group, but one precision where one matrix spans all layers.
        posterior: The posterior.
        problem: The model it is of.

    Returns:
        A label for each operator, by its name.

    Raises:
        ArgumentError: If the scope is unknown, or one matrix spans all layers.
    """
    if scope not in get_args(Scope):
        raise ArgumentError(f"scope must be one of {get_args(Scope)}, got {scope!r}.")
    joint = JOINT in posterior.operators
    if scope == "scalar" or (scope == "auto" and joint):
        return dict.fromkeys(posterior.operators, "all")
    if joint:
        raise ArgumentError(
            f"scope must be 'scalar' for structure 'full', whose one matrix spans all "
            f"layers, got {scope!r}. Fit with structure='kron', 'ekfac' or 'diag'."
        )
    if scope == "layer":
        return {name: name for name in posterior.operators}
    found = coverage(problem.model)
    groups = {each.name: str(each.group) for each in found.layers}
    if found.output_layer is not None:
        groups[found.output_layer.name] = "head"
    return {name: groups[name] for name in posterior.operators}


def distinct(labels: Sequence[str]) -> list[str]:
    """The labels in the order they first appear."""
    return list(dict.fromkeys(labels))
