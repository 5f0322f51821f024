"""The last affine layer in the order the model lists its modules: the classic baseline."""

from __future__ import annotations

from torch import nn

from smidgen.errors import StructureError
from smidgen.weights.affine import require_coverage
from smidgen.weights.subset import Subset


def last_layer(model: nn.Module) -> Subset:
    """Choose all weights of the last affine layer.

    Args:
        model: The trained model.

    Returns:
        The whole weight and bias of the last layer, in the order of the modules.

    Raises:
        StructureError: If a matrix that cannot be chosen comes after all that can, as an
            output layer does that is tied to the embeddings.
    """
    coverage = require_coverage(model)
    last = coverage.last()
    if last is None:
        raise StructureError(
            f"the last layer cannot be chosen: {coverage.without_output_layer}. Choose others, "
            "with smidgen.select.sparse_kfac or "
            f"smidgen.select.named(model, '{coverage.layers[-1].name}.*')."
        )
    return last
