"""The last affine map in the order the model lists its modules: the classic baseline."""

from __future__ import annotations

from torch import nn

from smidgen.affine import affine_coverage
from smidgen.subset import Subset


def last_layer(model: nn.Module) -> Subset:
    """Choose all weights of the last affine map.

    Args:
        model: The trained model; it is only looked at.

    Returns:
        The whole weight and bias of the last map, in the order of the modules.
    """
    return affine_coverage(model).last()
