"""Which operators share a prior precision: all of them, those of a group, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from smidgen.curvature.operators import JOINT
from smidgen.errors import ArgumentError
from smidgen.posterior.laplace import LaplacePosterior
from smidgen.weights.affine import Coverage

Scope = Literal["auto", "scalar", "head", "group", "layer"]

HEAD, BODY = "head", "body"
"""The labels of the layers that make the outputs, and of all others."""


def group_labels(
    scope: Scope, posterior: LaplacePosterior, covered: Callable[[], Coverage]
) -> dict[str, str]:
    """Label each operator by the precision it shares; "auto" means by group if possible."""
    # `covered` is asked only where groups are wanted: to see the head takes a pass.
    if scope not in get_args(Scope):
        raise ArgumentError(f"scope must be one of {get_args(Scope)}, got {scope!r}.")
    joint = JOINT in posterior.operators
    if scope == "scalar" or (scope == "auto" and len(posterior.operators) == 1):
        return dict.fromkeys(posterior.operators, "all")
    if joint:
        raise ArgumentError(
            f"scope must be 'scalar' for structure 'full', whose one matrix spans all "
            f"layers, got {scope!r}. Fit with structure='kron', 'ekfac' or 'diag'."
        )
    if scope == "layer":
        return {name: name for name in posterior.operators}
    seen = covered()
    groups = {layer.name: str(layer.group) for layer in seen.layers}
    if scope == "head":
        groups = dict.fromkeys(groups, BODY)
    groups |= {layer.name: HEAD for layer in seen.output_layers}
    labels = {name: groups[name] for name in posterior.operators}
    # Beside a curvature and without any, a precision does not mean the same.
    kinds: dict[str, set[str]] = {}
    for name, operator in posterior.operators.items():
        kinds.setdefault(labels[name], set()).add(operator.structure)
    return {
        name: label
        if len(kinds[label]) == 1
        else f"{label}, {posterior.operators[name].structure}"
        for name, label in labels.items()
    }
