"""The layers that make the outputs, whole: the classic baseline."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from smidgen.curvature.output_layers import find_output_layers
from smidgen.errors import StructureError
from smidgen.outputs.problem import Problem, as_problem
from smidgen.types import Batch
from smidgen.weights.affine import require_coverage
from smidgen.weights.subset import Subset


def last_layer(
    model: nn.Module | Problem, batches: Iterable[Batch] | None = None
) -> Subset:
    """Choose all weights of the layer that makes the outputs, or of several side by side.

    Args:
        model: The trained model, or a `Problem` that says how to read its batches.
        batches: A list or a data loader; the model runs on the first batch, to see which layer
            it is. Without them a Hugging Face model is rehearsed on inputs of its own, and of
            others the last affine layer in the order of the modules is taken. Whether it is
            the right one is then checked where data are first seen, by a fit.

    Returns:
        The whole weight and bias of these layers.

    Raises:
        StructureError: If the outputs are made by a matrix that cannot be chosen, such as an
            output layer that is tied to the embeddings.
    """
    problem = as_problem(model)
    require_coverage(problem.model)
    covered = find_output_layers(problem, batches)
    last = covered.last()
    if last is None:
        raise StructureError(
            f"the last layer cannot be chosen: {covered.without_output_layer}. Choose others, "
            "with smidgen.select.sparse_kfac or "
            f"smidgen.select.named(model, '{covered.layers[-1].name}.*')."
        )
    return last
