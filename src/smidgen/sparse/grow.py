"""Which inactive weights to grow: those with the largest |∂L/∂μ|, found block by block.

The loss is averaged over several batches and draws of the noise. A tap records the input
x and the gradient δ of a layer's output; the gradient of its weights is Σ δ xᵀ, computed
for a block of rows at a time, of which only the largest entries are kept. So the gradient
of a whole layer is never held. What is held are the taps: inputs and output gradients of
all layers in all passes, as much as the activations of so many batches. For
convolutions, whose activations outnumber their weights, that is more than it saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from smidgen.sparse.layers import GaussianLayer, is_recomputing

Loss = Callable[[], Tensor]
"""Computes the mean loss of a batch, with fresh noise each time."""

GradientTap = list[tuple[Tensor, Tensor]]
"""Inputs and output gradients of one layer, a pair for each time it ran."""

# Entries of a block: a megabyte of fp32.
_BLOCK = 2**18


@dataclass(frozen=True, eq=False)
class GrowthCandidates:
    """Inactive weights of one layer with the largest gradients, the largest first."""

    scores: Tensor
    indices: Tensor


def tap_gradients(
    model: nn.Module, layers: Mapping[str, GaussianLayer], losses: Iterable[Loss]
) -> dict[str, GradientTap]:
    """Run every loss forward, and backward to the layers' outputs; buffers are restored."""
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    taps: dict[str, GradientTap] = {name: [] for name in layers}
    runs: list[tuple[str, Tensor, Tensor]] = []

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
        def record(_: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
            outputs.requires_grad_()
            if not is_recomputing():
                runs.append((name, inputs[0].detach(), outputs))
            # The next module may change its input in place.
            return outputs.clone()

        return record

    handles = [layer.register_forward_hook(hook(name)) for name, layer in layers.items()]
    # The gradients of active weights are not needed here.
    trainable = [p for p in model.parameters() if p.requires_grad]
    try:
        for parameter in trainable:
            parameter.requires_grad_(False)
        for compute_loss in losses:
            runs.clear()
            with torch.enable_grad():
                loss = compute_loss()
            outputs = [output for _, _, output in runs]
            deltas = torch.autograd.grad(loss, outputs, allow_unused=True)
            for (name, inputs, _), delta in zip(runs, deltas, strict=True):
                if delta is not None:
                    taps[name].append((inputs, delta))
    finally:
        for handle in handles:
            handle.remove()
        for parameter in trainable:
            parameter.requires_grad_(True)
        with torch.no_grad():
            for name, value in model.named_buffers():
                value.copy_(buffers[name])
    return taps


def find_largest_gradients(
    layer: GaussianLayer,
    tap: GradientTap,
    excluded: Tensor,
    count: int,
    block: int = _BLOCK,
) -> GrowthCandidates:
    """Find the largest |Σ δ xᵀ| of weights that are not excluded (ascending, int32)."""
    rows, columns = layer.pattern.rows, layer.pattern.columns
    count = min(count, layer.pattern.total - excluded.numel())
    step = max(1, block // columns)
    scores = layer.means.new_empty(0)
    indices = excluded.new_empty(0)
    for start in range(0, rows if count else 0, step):
        stop = min(rows, start + step)
        sizes = _gradient_sizes(layer, tap, start, stop)
        edges = excluded.new_tensor([start * columns, stop * columns])
        low, high = torch.searchsorted(excluded, edges).tolist()
        sizes[excluded[low:high] - start * columns] = -1.0
        if scores.numel() < count:
            above = sizes.topk(min(count, sizes.numel())).indices
        else:
            # Below the smallest candidate nothing can be among the largest.
            above = (sizes > scores.min()).nonzero().flatten()
        scores = torch.cat([scores, sizes[above]])
        indices = torch.cat([indices, above.to(excluded) + start * columns])
        if scores.numel() > count:
            top = scores.topk(count)
            scores, indices = top.values, indices[top.indices]
    order = scores.argsort(descending=True, stable=True)[: int((scores >= 0).sum())]
    return GrowthCandidates(scores[order], indices[order])


def _gradient_sizes(
    layer: GaussianLayer, tap: GradientTap, start: int, stop: int
) -> Tensor:
    """|Σ δ xᵀ| of some rows, flat."""
    total = layer.means.new_zeros(stop - start, layer.pattern.columns)
    for inputs, deltas in tap:
        total += layer.compute_row_gradient(inputs, deltas, start, stop)
    # NaN counts as no gradient: as many weights must grow as were pruned.
    return total.abs_().nan_to_num_(0.0).flatten()
