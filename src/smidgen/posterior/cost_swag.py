"""What a SWAG posterior costs, from shapes alone: the same words as for Laplace.

With S chosen weights, e bytes a number, K deviations and P the sizes of all parameters that
the subset touches, a collection holds

    moments   (K + 2)·S·e, or 2·S·e, or S·e
    descent   six vectors of S: weights, velocity, gradient and sums on their way
    copies    P·p for the touched parameters and P·p for their gradients, p bytes each
    graph     what autograd keeps, every touched layer's inputs among it, and dropout's masks
    swing     twice the largest piece of the graph

and a prediction draws with seven vectors of S, one copy of the parameters and a forward
pass whose unchanged modules are kept: no more than the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from torch import nn

from smidgen.curvature.dry_run import ActivationTrace
from smidgen.errors import ResourceError
from smidgen.outputs.problem import SettledProblem
from smidgen.posterior.candidates import Candidate, compared_subsets
from smidgen.posterior.cost import SLACK, Cost, Setting
from smidgen.posterior.swag import COVARIANCE_KINDS, CovarianceKind
from smidgen.runtime.memory import LIMIT, available_bytes, format_bytes
from smidgen.weights.affine import require_coverage
from smidgen.weights.subset import Subset

_DESCENT = 6
_DRAW = 7
_COPIES: Mapping[CovarianceKind, int] = {"low-rank": 2, "diagonal": 2, "none": 1}
STRUCTURES: dict[str, CovarianceKind] = {
    f"swag, {covariance}": covariance for covariance in COVARIANCE_KINDS
}
"""Names of the spreads in a plan."""


def swag_cost(
    model: nn.Module,
    subset: Subset,
    covariance: CovarianceKind,
    rank: int,
    seen: ActivationTrace,
    setting: Setting,
) -> Cost:
    """Count what a collection costs.

    Args:
        model: The model; its weights may be on the meta device.
        subset: The weights that move.
        covariance: Which covariance.
        rank: Deviations kept, K.
        seen: What a pass keeps; without runs, activations are left out.
        setting: What of the problem matters.

    Returns:
        The cost; passes over the data are not counted, steps are.
    """
    indices, _ = subset.to_tensors()
    kept = _COPIES[covariance] + (rank if covariance == "low-rank" else 0)
    vector = subset.size * setting.itemsize
    moments = kept * vector
    parameters = dict(model.named_parameters())
    touched = sum(parameters[name].nbytes for name in subset.parts)
    layers = touched_maps(model, subset)
    graph = seen.graph(layers)
    for name in layers:
        graph.update(seen.inputs(name))
    activations = sum(graph.values())
    swing = 2 * max((each.bytes for each in seen.kept), default=0)
    slack = int(SLACK * (activations + swing))
    peak = moments + _DESCENT * vector + 2 * touched + activations + swing + slack
    predicting = _DRAW * vector + touched + activations + swing + slack
    return Cost(
        weights=subset.size,
        stored_bytes=moments + sum(each.nbytes for each in indices.values()),
        fit_peak_bytes=peak,
        tune_peak_bytes=predicting,
        predict_peak_bytes=predicting,
        activation_bytes=activations + swing + slack,
        passes=1,
        pass_work=_gradient_work(model, subset, seen),
        final_work=0,
    )


def touched_maps(model: nn.Module, subset: Subset) -> set[str]:
    """Names of the affine layers a subset touches; all of them if it touches others too."""
    layers = require_coverage(model).layers
    owners = {name: each.name for each in layers for name in each.shapes}
    if any(name not in owners for name in subset.parts):
        return set(owners.values())
    return {owners[name] for name in subset.parts}


def swag_candidates(
    model: nn.Module, name: str, subset: Subset, covariance: CovarianceKind
) -> Iterator[tuple[Candidate, CovarianceKind]]:
    """List a choice and what could be taken in its place.

    Args:
        model: The model; it is only looked at.
        name: What to call the choice.
        subset: The chosen weights.
        covariance: The chosen covariance.

    Yields:
        The choice; its covariance on other subsets; its subset with other spreads.
    """
    labels = {each: label for label, each in STRUCTURES.items()}
    yield Candidate(name, labels[covariance], subset, True), covariance
    for other, weights in compared_subsets(model).items():
        if other != name:
            yield Candidate(other, labels[covariance], weights), covariance
    rest: Sequence[CovarianceKind] = [
        each for each in COVARIANCE_KINDS if each != covariance
    ]
    for each in rest:
        yield Candidate(name, labels[each], subset), each


def _gradient_work(model: nn.Module, subset: Subset, seen: ActivationTrace) -> int:
    """Multiplications of the touched layers' weight gradients, for each batch."""
    sizes = {
        each.name: prod((each.outputs, each.inputs))
        for each in require_coverage(model).layers
    }
    return sum(
        seen.examples * seen.positions(name) * sizes[name]
        for name in touched_maps(model, subset)
    )


def refuse_too_large(
    problem: SettledProblem, subset: Subset, covariance: CovarianceKind, rank: int
) -> None:
    """Refuse a collection whose own memory is more than there is, and say what would fit.

    Activations are left out: they are the model's, and would need a pass to be told.

    Args:
        problem: The problem, its likelihood settled.
        subset: The weights that move.
        covariance: Which covariance.
        rank: Deviations kept.

    Raises:
        ResourceError: If it would not fit.
    """
    available, setting = available_bytes(problem.device), Setting.of(problem)
    nothing = ActivationTrace(1, 0)

    def peak(weights: Subset, kind: CovarianceKind) -> int:
        cost = swag_cost(problem.model, weights, kind, rank, nothing, setting)
        return cost.fit_peak_bytes

    needed = peak(subset, covariance)
    if available is None or needed <= available:
        return
    listed = list(swag_candidates(problem.model, "this subset", subset, covariance))[1:]
    sizes = [(peak(each.subset, kind), each.name, kind) for each, kind in listed]
    advice = [
        f"{name} with covariance={kind!r} ({format_bytes(size)})"
        for size, name, kind in sorted(sizes, reverse=True)
        if size <= available
    ]
    raise ResourceError(
        f"SWAG on {subset.size:,} weights with covariance {covariance!r} needs "
        f"{format_bytes(needed)} of memory, and {format_bytes(available)} are available. "
        + (f"What fits: {'; '.join(advice[:4])}." if advice else "Nothing would fit.")
        + f" smidgen.plan shows all; {LIMIT}=BYTES overrules what is available."
    )
