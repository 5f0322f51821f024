"""The slow, exact side of a verification: autograd Jacobians with respect to the weights.

No taps and no hooks: the model runs on copies of its weights, in fp64 where all can be cast, and
every output of every example is back-propagated separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from smidgen.outputs.problem import SettledProblem
from smidgen.runtime.guard import preserve_random_state
from smidgen.runtime.storage.offload import read_parameter
from smidgen.runtime.storage.quantised import is_quantised
from smidgen.types import Batch
from smidgen.weights.blocks import LayerBlock


@dataclass(frozen=True, eq=False)
class ExactJacobians:
    """Jacobians (R, C, D) of each layer's block, Hessians Λ (R, C, C); fp64 on the CPU."""

    jacobians: Mapping[str, Tensor]
    hessians: Tensor

    def curvature(self, name: str) -> Tensor:
        """Σ Jᵀ Λ J, (D, D)."""
        jacobian = self.jacobians[name]
        return torch.einsum("rcd,rce,ref->df", jacobian, self.hessians, jacobian)

    def variance(self, name: str, covariance: Tensor) -> Tensor:
        """J Σ Jᵀ of each output, (R, C, C)."""
        jacobian = self.jacobians[name]
        return jacobian @ covariance @ jacobian.mT


def exact_jacobians(
    problem: SettledProblem, batches: Sequence[Batch], blocks: Sequence[LayerBlock]
) -> ExactJacobians:
    """Back-propagate every labelled output separately, in fp64 if the model can run in it."""
    # What is packed or offloaded cannot be cast.
    if not any(p.is_meta or is_quantised(p) for p in problem.model.parameters()):
        try:
            return _differentiate(problem, batches, blocks, torch.float64)
        except (RuntimeError, TypeError):
            # A forward pass that names a type, or a device without fp64.
            pass
    return _differentiate(problem, batches, blocks, None)


def _differentiate(
    problem: SettledProblem,
    batches: Sequence[Batch],
    blocks: Sequence[LayerBlock],
    dtype: torch.dtype | None,
) -> ExactJacobians:
    def cast(tensor: Tensor) -> Tensor:
        copy = tensor.detach().clone()
        return copy.to(dtype) if dtype and copy.is_floating_point() else copy

    model = problem.model
    names = [name for block in blocks for name in block.layer.shapes]
    leaves = {name: cast(read_parameter(model, name)) for name in names}
    tensors = dict(leaves)
    if dtype is not None:
        others = (*model.named_parameters(), *model.named_buffers())
        tensors |= {n: cast(t) for n, t in others if n not in leaves}
    for leaf in leaves.values():
        leaf.requires_grad_()
    pieces: dict[str, list[Tensor]] = {block.layer.name: [] for block in blocks}
    hessians = []
    problem = problem.on_shadow()

    def visit(batch: Batch, outputs: Tensor) -> None:
        _, kept = problem.read(batch, outputs.detach())
        hessians.append(exact_hessians(problem, outputs.detach()[kept]))
        for row in outputs[kept]:
            gradients = [_gradients(output, leaves) for output in row]
            for block in blocks:
                jacobian = torch.stack([_entries(block, g) for g in gradients])
                pieces[block.layer.name].append(jacobian)

    with preserve_random_state(problem.model), torch.enable_grad():
        for batch in batches:
            # Back-propagated while the copies are in place, for networks that run again then.
            moved = tree_map_only(Tensor, cast, batch)
            problem.within(moved, tensors, partial(visit, batch))
    jacobians = {name: torch.stack(rows) for name, rows in pieces.items()}
    return ExactJacobians(jacobians, torch.cat(hessians))


def _gradients(output: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if not output.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    gradients = torch.autograd.grad(
        output, list(leaves.values()), retain_graph=True, materialize_grads=True
    )
    return dict(zip(leaves, gradients, strict=True))


def _entries(block: LayerBlock, gradients: Mapping[str, Tensor]) -> Tensor:
    """Take the gradients of a block's weights, in the block's order, (D,)."""
    gradient = gradients[block.layer.weight]
    matrix = block.layer.as_matrix(gradient)
    device = gradient.device
    grid = matrix[block.rows.to(device)][:, block.columns.to(device)]
    if block.bias:
        assert block.layer.bias is not None
        bias = gradients[block.layer.bias].flatten()[block.rows.to(device)]
        grid = torch.cat([bias[:, None], grid], 1)
    return grid.flatten().double().cpu()


def exact_hessians(problem: SettledProblem, outputs: Tensor) -> Tensor:
    """Hessians of −log p at each row of outputs, by autograd, for unit noise."""
    likelihood = problem.likelihood
    outputs = outputs.double().cpu()
    if not len(outputs):  # No example of a batch has a label.
        return outputs.new_zeros(0, likelihood.outputs, likelihood.outputs)
    # None of these likelihoods has a Hessian that depends on the target: any will do.
    targets = likelihood.draw_targets(outputs, torch.Generator().manual_seed(0))

    def loss(row: Tensor, target: Tensor) -> Tensor:
        return -likelihood.log_prob(row[None], target[None])[0] * likelihood.scale

    hessians = [
        torch.autograd.functional.hessian(lambda f, y=target: loss(f, y), row)
        for row, target in zip(outputs, targets, strict=True)
    ]
    return torch.stack(hessians)
