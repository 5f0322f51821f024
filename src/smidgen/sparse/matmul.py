"""y = x Wᵀ for a W of k active entries, on a dense path and on a sparse one.

Both compute the same. Dense: W is written out for the call and autograd does the rest,
so the gradient of all n·m entries is computed and k of them are used. Sparse: three
products that cost k each, with W in compressed rows,

    y = (W xᵀ)ᵀ,   ∂x = (Wᵀ ∂yᵀ)ᵀ,   ∂w_ij = Σ_r ∂y_ri x_rj for active (i, j) only.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from smidgen.sparse.pattern import Pattern

Path = Literal["dense", "sparse"]


def multiply(inputs: Tensor, values: Tensor, pattern: Pattern, path: Path) -> Tensor:
    """Compute x Wᵀ, (..., n), of x (..., m) and the k active entries of W."""
    if path == "dense":
        return functional.linear(inputs, pattern.to_dense(values))
    rows = inputs.reshape(-1, pattern.columns)
    # Transposed out here: a view made inside could not be changed in place later.
    outputs: Tensor = _SparseProduct.apply(rows, values, pattern).T  # type: ignore[no-untyped-call]
    if inputs.dim() == 2:
        return outputs
    return outputs.view(*inputs.shape[:-1], pattern.rows)


@cache
def can_multiply_sparsely(device: str, dtype: torch.dtype) -> bool:
    """Tell whether a kind of device has the sparse products of a type, by trying them."""
    with torch.inference_mode(False), torch.enable_grad():
        pattern = Pattern(2, 3, torch.tensor([0, 4], device=device))
        try:
            inputs = torch.ones(2, 3, dtype=dtype, device=device, requires_grad=True)
            values = torch.ones(2, dtype=dtype, device=device, requires_grad=True)
            multiply(inputs, values, pattern, "sparse").sum().backward()
        except RuntimeError:
            return False
    return True


class _SparseProduct(torch.autograd.Function):
    """W xᵀ in compressed rows: a row of xᵀ is one gather."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, values: Tensor, pattern: Pattern) -> Tensor:
        ctx.save_for_backward(inputs, values)
        ctx.pattern = pattern
        return _multiply_csr(pattern.to_csr(values), inputs.T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, deltas: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        inputs, values = ctx.saved_tensors
        deltas = deltas.contiguous()
        of_inputs = of_values = None
        if ctx.needs_input_grad[0]:
            of_inputs = _multiply_csr(ctx.pattern.to_transposed_csr(values), deltas).T
        if ctx.needs_input_grad[1]:
            matrix = ctx.pattern.to_csr(values)
            product = torch.sparse.sampled_addmm(matrix, deltas, inputs, beta=0.0)
            of_values = product.values()
        return of_inputs, of_values, None


def _multiply_csr(matrix: Tensor, columns: Tensor) -> Tensor:
    """Compressed rows times a dense matrix."""
    if columns.device.type != "cpu":
        return matrix @ columns
    # torch's own reduction, a third faster here than the library behind `@`.
    return torch.sparse.mm(matrix, columns.contiguous(), reduce="sum")
