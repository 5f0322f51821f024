"""The slow, exact side of a verification: Jacobians by autograd in the weights themselves.

No taps and no hooks: the model runs on copies of its weights, in fp64 where it can, and
every output of every example is back-propagated by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from smidgen.outputs.problem import SettledProblem
from smidgen.runtime.guard import preserve_model
from smidgen.types import Batch
from smidgen.weights.blocks import LayerBlock


@dataclass(frozen=True, eq=False)
class Exact:
    """Jacobians (R, C, D) of each layer's chosen weights, and Hessians Λ (R, C, C)."""

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
    problem: SettledProblem, batches: Sequence[Batch], chosen: Sequence[LayerBlock]
) -> Exact:
    """Back-propagate every kept output by itself, in fp64 if the model can.

    Args:
        problem: The problem, with its likelihood settled.
        batches: The batches.
        chosen: The weights to differentiate in; blocks of rows and columns.

    Returns:
        Jacobians and Hessians, on the CPU in fp64.
    """
    try:
        return _in_type(problem, batches, chosen, torch.float64)
    except (RuntimeError, TypeError):
        # A forward pass that names a type, or a device without fp64.
        return _in_type(problem, batches, chosen, None)


def _in_type(
    problem: SettledProblem,
    batches: Sequence[Batch],
    chosen: Sequence[LayerBlock],
    kind: torch.dtype | None,
) -> Exact:
    def typed(tensor: Tensor) -> Tensor:
        copy = tensor.detach().clone()
        return copy.to(kind) if kind and copy.is_floating_point() else copy

    tensors = {n: typed(p) for n, p in problem.model.named_parameters()}
    tensors |= {n: typed(b) for n, b in problem.model.named_buffers()}
    leaves = {name: tensors[name] for block in chosen for name in block.layer.shapes}
    for leaf in leaves.values():
        leaf.requires_grad_()
    pieces: dict[str, list[Tensor]] = {block.layer.name: [] for block in chosen}
    hessians = []
    with preserve_model(problem.model), torch.enable_grad():
        for batch in batches:
            shown = tree_map_only(Tensor, typed, batch)
            outputs = problem.outputs_with(tensors, shown).flatten(0, -2)
            _, kept = problem.read(batch, outputs.detach())
            hessians.append(_hessians(problem, outputs.detach()[kept]))
            for row in outputs[kept]:
                found = [_gradients(output, leaves) for output in row]
                for block in chosen:
                    own = torch.stack([_entries(block, each) for each in found])
                    pieces[block.layer.name].append(own)
    jacobians = {name: torch.stack(each) for name, each in pieces.items()}
    return Exact(jacobians, torch.cat(hessians))


def _gradients(output: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if not output.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    found = torch.autograd.grad(
        output, list(leaves.values()), retain_graph=True, materialize_grads=True
    )
    return dict(zip(leaves, found, strict=True))


def _entries(block: LayerBlock, gradients: Mapping[str, Tensor]) -> Tensor:
    """Gradients of a block's weights in the order of its grid, (D,)."""
    gradient = gradients[block.layer.weight]
    matrix = gradient.T if block.layer.transposed else gradient.flatten(1)
    device = gradient.device
    grid = matrix[block.rows.to(device)][:, block.columns.to(device)]
    if block.bias:
        assert block.layer.bias is not None
        bias = gradients[block.layer.bias][block.rows.to(device)]
        grid = torch.cat([bias[:, None], grid], 1)
    return grid.flatten().double().cpu()


def _hessians(problem: SettledProblem, outputs: Tensor) -> Tensor:
    """Hessians of −log p in each row of outputs by autograd, for unit noise."""
    likelihood = problem.likelihood
    outputs = outputs.double().cpu()
    # Of these likelihoods no Hessian depends on the target, so any will do.
    targets = likelihood.drawn_targets(outputs, torch.Generator().manual_seed(0))

    def loss(row: Tensor, target: Tensor) -> Tensor:
        return -likelihood.log_prob(row[None], target[None])[0] * likelihood.scale

    found = [
        torch.autograd.functional.hessian(lambda each, y=target: loss(each, y), row)
        for row, target in zip(outputs, targets, strict=True)
    ]
    return torch.stack(found)
