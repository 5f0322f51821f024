"""nn.Linear, its subclasses that compute the same, and transformers' Conv1D (GPT-2)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from smidgen.weights.affine.kind import Kind, Matrix

# Loaders of models leave marks like this one.
_MARKS = frozenset(("_is_hf_initialized",))


def _find(module: nn.Module) -> tuple[Matrix, ...] | str | None:
    kind = type(module)
    # By name, so that the core does not import transformers.
    if (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D"):
        return (Matrix(row_axes=(1,)),)
    if not isinstance(module, nn.Linear):
        return None
    if kind.forward is nn.Linear.forward or _is_exact(module):
        return (Matrix(),)
    # A forward of its own may use its weight in another way.
    return f"{kind.__name__} is not an affine layer"


def _is_exact(module: nn.Linear) -> bool:
    """Whether a subclass, Falcon's say, writes W x + b in its own words."""
    # Nothing but its class may say what it computes, since one of a class is asked for all.
    known = vars(nn.utils.skip_init(nn.Linear, 1, 1)).keys() | _MARKS
    more = vars(module).keys() - known
    kind: Any = type(module)
    return not (more or module._buffers or module._modules) and _computes_linear(kind)


@lru_cache(maxsize=256)
def _computes_linear(kind: Any) -> bool:
    """Compare a class with W x + b, on inputs of several sizes and shapes, in fp64."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    try:
        with torch.no_grad(), torch.inference_mode(False):
            for bias in (None, nn.Parameter(draw(5))):
                module: Any = object.__new__(kind)
                plain_one = nn.utils.skip_init(nn.Linear, 3, 5, bias=False)
                vars(module).update(vars(plain_one), training=False)
                module._parameters = {"weight": nn.Parameter(draw(5, 3)), "bias": bias}
                for x in (draw(2, 3), 1e3 * draw(2, 4, 3), 1e-3 * draw(4, 3)):
                    plain = nn.functional.linear(x, module.weight, module.bias)
                    torch.testing.assert_close(module(x), plain, rtol=1e-12, atol=1e-12)
    except Exception:
        return False
    return True


LINEAR = Kind("linear", _find)
"""W x + b."""
