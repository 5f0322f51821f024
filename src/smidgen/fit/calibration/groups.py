"""Which operators share a prior precision: all of them, those of a group, or none."""

from __future__ import annotations

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
    """Label each operator by the precision it shares; "auto" means by group if possible."""
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
    covered = coverage(problem.model)
    groups = {layer.name: str(layer.group) for layer in covered.layers}
    if covered.output_layer is not None:
        groups[covered.output_layer.name] = "head"
    return {name: groups[name] for name in posterior.operators}
