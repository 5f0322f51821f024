"""What a SWAG posterior costs, from shapes alone, in the terms of `cost.laplace`.

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

from collections.abc import Mapping

from torch import nn

from smidgen.curvature.dry_run import ActivationTrace
from smidgen.posterior.cost.model import SLACK, Cost, CostModel, Setting
from smidgen.posterior.swag import COVARIANCE_KINDS
from smidgen.weights.affine import AffineLayer, require_coverage
from smidgen.weights.subset import Subset

_SGD_VECTORS = 6
_DRAW_VECTORS = 7
# Vectors stored besides the deviations: mean and variance, or the mean.
_MOMENT_VECTORS: Mapping[str, int] = {"low-rank": 2, "diagonal": 2, "none": 1}


def swag_cost(
    model: nn.Module,
    subset: Subset,
    covariance: str,
    trace: ActivationTrace,
    setting: Setting,
) -> Cost:
    """Count what one pass of SWAG costs: the number of passes follows from the steps."""
    indices, _ = subset.to_tensors()
    deviations = setting.rank if covariance == "low-rank" else 0
    vector = subset.size * setting.itemsize
    moments = (_MOMENT_VECTORS[covariance] + deviations) * vector
    parameters = dict(model.named_parameters())
    touched = sum(parameters[name].nbytes for name in subset.parts)
    layers = touched_layers(model, subset)
    graph = trace.graph(set(layers))
    for name in layers:
        graph.update(trace.inputs(name))
    swing = 2 * max((piece.bytes for piece in trace.kept), default=0)
    activations = sum(graph.values()) + swing
    activations += int(SLACK * activations)
    predicting = _DRAW_VECTORS * vector + touched + activations
    return Cost(
        weights=subset.size,
        stored_bytes=moments + sum(tensor.nbytes for tensor in indices.values()),
        fit_peak_bytes=moments + _SGD_VECTORS * vector + 2 * touched + activations,
        tune_peak_bytes=predicting,
        predict_peak_bytes=predicting,
        activation_bytes=activations,
        passes=1,
        # The touched layers' weight gradients.
        pass_work=sum(
            trace.examples * trace.positions(name) * layer.outputs * layer.inputs
            for name, layer in layers.items()
        ),
        final_work=0,
    )


def touched_layers(model: nn.Module, subset: Subset) -> dict[str, AffineLayer]:
    """Find the affine layers a subset touches; all if it touches other weights too."""
    layers = require_coverage(model).layers
    known = {name for layer in layers for name in layer.shapes}
    everything = not known.issuperset(subset.parts)
    return {
        layer.name: layer
        for layer in layers
        if everything or not subset.parts.keys().isdisjoint(layer.shapes)
    }


SWAG_COSTS = CostModel(
    cost=swag_cost,
    forms=COVARIANCE_KINDS,
    option="covariance",
    label="swag, {}",
    scattered=COVARIANCE_KINDS,
)
"""How the cost of a SWAG posterior is counted, by covariance."""
