"""Which inactive weights come: those with the largest |∂L/∂μ|, found block by block.

The loss is averaged over several batches and noise draws. A tap sees the input x and
the gradient δ of a layer's output; the gradient of its weights is Σ δ xᵀ, made for a block
of rows at a time, of which only the largest entries are kept. So no gradient of a whole
layer is ever held. What is held are the taps: inputs and output gradients of all layers in
all passes, as much as activations of so many batches. For convolutions, whose
activations outnumber their weights, that is more than the gradient it saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from smidgen.sparse.layers import GaussianLayer
from smidgen.sparse.recomputing import recomputed

Loss = Callable[[], Tensor]
"""Computes the mean loss of a batch, with fresh noise each time."""

# Entries of a block: a megabyte of fp32.
_BLOCK = 2**18


@dataclass(frozen=True, eq=False)
class GradientTap:
    """Inputs and output gradients of one layer in every pass."""

    inputs: tuple[Tensor, ...]
    outers: tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class Candidates:
    """Inactive weights of one layer with the largest gradients, the largest first."""

    scores: Tensor
    indices: Tensor


def tap_gradients(
    model: nn.Module, layers: Mapping[str, GaussianLayer], losses: Iterable[Loss]
) -> dict[str, GradientTap]:
    """Run every loss forward and backward, down to the outputs of the layers only.

    Args:
        model: Holds the layers. Its buffers are as before afterwards.
        layers: The layers by name.
        losses: What to average.

    Returns:
        A tap of each layer.
    """
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    inputs: dict[str, list[Tensor]] = {name: [] for name in layers}
    outers: dict[str, list[Tensor]] = {name: [] for name in layers}
    seen: list[tuple[str, Tensor, Tensor]] = []

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def record(_: nn.Module, given: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
            outputs.requires_grad_()
            if not recomputed():
                seen.append((name, given[0].detach(), outputs))
            # What follows may change its input in place.
            return outputs.clone()

        return record

    handles = [part.register_forward_hook(hook(name)) for name, part in layers.items()]
    # Nobody asks for the gradients of active weights here.
    asked = [p for p in model.parameters() if p.requires_grad]
    try:
        for parameter in asked:
            parameter.requires_grad_(False)
        for loss in losses:
            seen.clear()
            with torch.enable_grad():
                value = loss()
            outputs = [each for _, _, each in seen]
            found = torch.autograd.grad(value, outputs, allow_unused=True)
            for (name, given, _), outer in zip(seen, found, strict=True):
                if outer is not None:
                    inputs[name].append(given)
                    outers[name].append(outer)
    finally:
        for handle in handles:
            handle.remove()
        for parameter in asked:
            parameter.requires_grad_(True)
        with torch.no_grad():
            for name, value in model.named_buffers():
                value.copy_(buffers[name])
    return {name: GradientTap(tuple(inputs[name]), tuple(outers[name])) for name in layers}


def largest_gradients(
    part: GaussianLayer, tap: GradientTap, kept: Tensor, count: int, block: int = _BLOCK
) -> Candidates:
    """Find the largest |Σ δ xᵀ| among weights that are not kept.

    Args:
        part: The layer.
        tap: What it saw.
        kept: Flat indices that are no candidates, ascending, int32.
        count: How many candidates to find, at most.
        block: Most entries of a gradient to hold at once; a row at least.

    Returns:
        As many candidates as asked, or all there are.
    """
    rows, columns = part.pattern.rows, part.pattern.columns
    count = min(count, part.pattern.total - kept.numel())
    step = max(1, block // columns)
    scores = part.means.new_empty(0)
    indices = kept.new_empty(0)
    for start in range(0, rows if count else 0, step):
        stop = min(rows, start + step)
        found = _gradient(part, tap, start, stop)
        edges = kept.new_tensor([start * columns, stop * columns])
        low, high = torch.searchsorted(kept, edges).tolist()
        found[kept[low:high] - start * columns] = -1.0
        if scores.numel() < count:
            above = found.topk(min(count, found.numel())).indices
        else:
            # What is not above the least so far cannot be among the largest.
            above = (found > scores.min()).nonzero().flatten()
        scores = torch.cat([scores, found[above]])
        indices = torch.cat([indices, above.to(kept) + start * columns])
        if scores.numel() > count:
            top = scores.topk(count)
            scores, indices = top.values, indices[top.indices]
    order = scores.argsort(descending=True, stable=True)[: int((scores >= 0).sum())]
    return Candidates(scores[order], indices[order])


def _gradient(part: GaussianLayer, tap: GradientTap, start: int, stop: int) -> Tensor:
    """|Σ δ xᵀ| of some rows, flat."""
    total = part.means.new_zeros(stop - start, part.pattern.columns)
    for inputs, outer in zip(tap.inputs, tap.outers, strict=True):
        total += part.row_gradient(inputs, outer, start, stop)
    # Without a number there is no direction either; as many must come as went.
    return total.abs_().nan_to_num_(0.0).flatten()
