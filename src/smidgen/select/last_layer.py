"""The last affine map in the order the model lists its modules: the classic baseline."""

from __future__ import annotations

from torch import nn

from smidgen.affine import affine_coverage
from smidgen.errors import StructureError
from smidgen.subset import Subset


def last_layer(model: nn.Module) -> Subset:
    """Choose all weights of the last affine map.

    Args:
        model: The trained model; it is only looked at.

    Returns:
        The whole weight and bias of the last map, in the order of the modules.

    Raises:
        StructureError: If a map that cannot be chosen comes after all that can, as an
            output map does that is tied to the embeddings.
    """
    found = affine_coverage(model)
    modules = list(model.named_modules())
    last = [path for path, _ in modules].index(found.maps[-1].modules[-1])
    for path, module in modules[last + 1 :]:
        if path in found.left_out and isinstance(module, nn.Linear):
            raise StructureError(
                f"the last layer must be a map that can be chosen, got {path!r}: "
                f"{found.left_out[path]}. Choose others, with smidgen.select.sparse_kfac "
                f"or smidgen.select.named(model, '{found.maps[-1].name}.*')."
            )
    return found.last()
